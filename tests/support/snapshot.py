"""Write what a change of structure must not change to a folder; two such folders are compared with ``diff -r``.

    python tests/support/snapshot.py BEFORE                  # on the one commit
    python tests/support/snapshot.py AFTER                   # on the other
    diff -r BEFORE AFTER

``schedules``: those of all zoo networks on four devices by every scheduler and both engines, at r = 3 and s = 8 (the smaller
networks unpruned), and the plan of the best. ``commands``: what the commands print. ``studies``: rows, schedules and answers
of all studies that ship. Seconds, and the version of the sources that prices come from, are left out; nothing else is.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shlex
import shutil
import tempfile
from pathlib import Path

import iossim
from iossim.api import search_options
from iossim.cli.main import main as command
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_schedule
from iossim.execution.plan_json import plan_to_json
from iossim.hardware.load import device_names
from iossim.models.catalogue import zoo_models

DEVICES = ("v100-sxm2", "t4", "a100-sxm-40gb", "jetson-orin")
#: Networks whose unpruned search takes no time.
SMALL = ("ios_sample", "squeezenet", "inception_v3", "resnet18")
COMMANDS = (
    "compare inception_v3 --device v100-sxm2",
    "compare squeezenet --device l4 --dtype fp16 --engine graph --json",
    "compare nasnet_a --device v100-sxm2 -r 3 -s 8 --json",
    "optimize inception_v3 --device v100-sxm2 --out inception",
    "optimize inception_v3 --device t4 --batch 8 --engine graph --out other",
    "simulate inception/schedule.json --device a100-sxm-40gb",
    "simulate inception/schedule.json --device t4 --event-driven --json",
    "explain inception/schedule.json",
    "explain inception/schedule.json --json",
    "diff inception/schedule.json other/schedule.json",
    "diff inception/schedule.json other/schedule.json --json",
    "search-space squeezenet --stages paper",
    "search-space inception_v3 --json",
    "models list",
    "models show inception_v3 --json",
    "schedules export inception/schedule.json --out theirs.json",
    *(f"devices show {name} --json" for name in device_names()),
)
#: Of JSON: times, and the version of the sources behind prices. Of the table of ``compare``: the column of the search.
UNSTEADY = re.compile(
    r'("(?:search_s|version|iossim|elapsed_s)": *)[^\n,}]+|^(\S+(?: ≈)?(?: +[\d.]+){2}(?: +\d+){2} +)\d+\.\d\d',
    re.MULTILINE,
)


def steady(text: str) -> str:
    return UNSTEADY.sub(lambda found: f"{found.group(1) or found.group(2)}_", text)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(steady(text), encoding="utf-8")


def schedules(out: Path) -> None:
    for model in (one.name for one in zoo_models()):
        network = iossim.load(model)
        pruned = search_options("general", None, None) if model in SMALL else search_options("general", 3, 8)
        for device in DEVICES:
            for engine in Engine:
                found = iossim.compare(network, device, engine=engine, options=pruned)
                name = f"{model}.{device}.{engine}"
                write(out / f"{name}.json", json.dumps(found.to_json(), indent=1))
                for in_place in (False, True):
                    plan = lower_schedule(found.best, network, engine, in_place=in_place)
                    write(out / f"{name}.{in_place}.plan.json", plan_to_json(plan))


def commands(out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, line in enumerate(COMMANDS):
            said, faults = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(faults):
                code = command(shlex.split(line))
            write(out / f"{number:02}.txt", f"$ iossim {line}\n{said.getvalue()}{faults.getvalue()}exit code {code}\n")
        for path in sorted(Path().rglob("*")):
            if path.suffix in (".json", ".svg", ".dot"):
                write(out / "files" / path, path.read_text(encoding="utf-8"))


def studies(out: Path) -> None:
    from iossim.study.scenario_file import scenario_names

    for name in scenario_names():
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / name
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                command(["study", "run", name, "--out", str(run), "--no-report"])
            for path in sorted(run.rglob("*")):
                if path.suffix in (".json", ".csv", ".md", ".txt") and path.name != "environment.json":
                    write(out / name / path.relative_to(run), path.read_text(encoding="utf-8"))


def main() -> None:
    parts = {part.__name__: part for part in (schedules, commands, studies)}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=list(parts), default=list(parts))
    given = parser.parse_args()
    os.environ["COLUMNS"] = "120"
    for name in given.only:
        folder = given.out.resolve() / name
        shutil.rmtree(folder, ignore_errors=True)
        parts[name](folder)
        print(f"{name}: {sum(path.is_file() for path in folder.rglob('*'))} files")


if __name__ == "__main__":
    main()
