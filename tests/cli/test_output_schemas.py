"""What each command prints with ``--json`` is valid by its schema, and has no key that the schema does not name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import printed, printed_json
from jsonschema import Draft202012Validator

from iossim.cli.main import build_command
from iossim.report.schemas import list_of, schema

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CPU = EXAMPLES / "cpu.yaml"
FAKE = "ios_sample --backend fake --rounds 3 --warm-up 0"
DATA = '{"schema": "iossim-measurements", "version": 1, "data_set": "lab", "device": "t4"}\n' + "".join(
    f'{{"op": "relu", "rows": {rows}, "cols": 64, "latency_us": {3 + rows / 1000}}}\n' for rows in range(100, 1000, 30)
)
RULE = 'rule: {0}-commutes\nsource: ["z = {0}(x, y)"]\ntarget: ["w = {0}(y, x)"]\noutputs: {{z: w}}\n'
#: Commands by schema, with the arguments of a small run.
RUNS = [
    ("bench", f"bench {FAKE} --device t4 --budget 30 --store b.sqlite"),
    ("calibrate", "calibrate data.jsonl --device t4 --folds 0 --out fitted.yaml"),
    ("check", "check ios_sample -d t4 --max-latency-ms 5"),
    ("compare", "compare ios_sample -d t4 --schedulers sequential,ios-both,ios-streams"),
    ("compare", "compare squeezenet -d t4 --rewrite default --schedulers sequential,greedy"),
    ("compare", "compare ios_sample -d t4,l4"),
    ("coschedule", "coschedule ios_sample ios_sample -d t4"),
    ("corun", f"corun {EXAMPLES}/corun/v100_sleep.csv -d v100"),
    ("dataflow-explain", "dataflow explain ios_sample -d c6678"),
    ("dataflow-optimize", "dataflow optimize ios_sample -d c6678"),
    ("dataflow-run", "dataflow run ios_sample -d c6678"),
    ("deploy", "deploy ios_sample --runtime tensorrt -d t4"),
    ("deploy", f"deploy ios_sample -d {CPU} --rounds 1 --out deployed"),
    ("devices-derive", "devices derive mine --like t4 --out mine.yaml"),
    ("devices-list", "devices list"),
    ("devices-validate", "devices validate t4"),
    ("diff", "diff stages.json greedy.json"),
    ("diff", "diff stages.json streams.json"),
    ("doctor", "doctor ios_sample"),
    ("explain", "explain stages.json"),
    ("explain", "explain streams.json"),
    ("measurements-export", "measurements export out.jsonl --store s.sqlite"),
    ("measurements-import", "measurements import s.sqlite --store new.sqlite"),
    ("measurements-list", "measurements list --store s.sqlite"),
    ("measurements-list", "measurements list --store s.sqlite --records"),
    ("measurements-prune", "measurements prune --store s.sqlite --kind unit"),
    ("microbatch", "microbatch alexnet -d t4 --batch 16 --workspace 8MiB"),
    ("models-list", "models list"),
    ("models-show", "models show squeezenet"),
    ("predict", "predict ios_sample -d t4"),
    ("predict", f"predict {EXAMPLES}/ops.csv -d t4"),
    ("profile", "devices show t4"),
    ("profile-report", f"profile-report squeezenet {EXAMPLES}/squeezenet.profile.json -d {CPU}"),
    ("profiling", f"profile {FAKE} --store p.sqlite"),
    ("rule", "rules show simplify"),
    ("rules-list", "rules list"),
    ("rules-verify", "rules verify rules.yaml"),
    ("run", "run stages.json --backend numpy_reference --rounds 1"),
    ("schedule", "optimize ios_sample -d t4"),
    ("schedule", "schedules import exported.json -d t4"),
    ("schedule", "simulate stages.json"),
    ("schedule", "simulate streams.json"),
    ("search-space", "search-space ios_sample"),
    ("study-list", "study list"),
    ("study-run", "study run tiny.yaml --workers 1 --no-report --out ran"),
    ("study-show", "study show tiny.yaml"),
    ("validate", "validate --data data.jsonl"),
]
#: Libraries that a command needs.
NEEDS = {"deploy": "onnxruntime", "rules-verify": "z3"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of schedules and runs of a study."""
    from iossim.cli.main import main

    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "data.jsonl").write_text(DATA)
        (folder / "rules.yaml").write_text("---\n".join(map(RULE.format, ("add", "matmul"))))
        for name, scheduler in (("stages", "ios-both"), ("greedy", "greedy"), ("streams", "ios-streams")):
            assert main(f"optimize ios_sample -d t4 --scheduler {scheduler} --no-plot --out {name}".split()) == 0
            (folder / name / "schedule.json").rename(f"{name}.json")
        assert main(["schedules", "export", "greedy.json", "--out", "exported.json"]) == 0
        asked = "--models ios_sample --devices t4,l4 --batch-sizes 1 --schedulers sequential,greedy"
        question = ["--question", "{best: scheduler, for_each: [device]}", "--title", "Tiny"]
        assert main(["study", "new", "tiny", *asked.split(), *question, "--out", "tiny.yaml"]) == 0
    return folder


def sealed(form: Any) -> Any:
    """A schema that allows no keys but those that it names, where it names any."""
    if isinstance(form, list):
        return [sealed(each) for each in form]
    if not isinstance(form, dict):
        return form
    made = {key: sealed(each) for key, each in form.items()}
    return {"additionalProperties": False, **made} if "properties" in made and "required" in made else made


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(("name", "command"), RUNS)
def test_output_is_valid(name: str, command: str, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    monkeypatch.chdir(made)
    if command.startswith("measurements") and not Path("s.sqlite").exists():
        printed(f"profile {FAKE} --store s.sqlite")
    form = sealed(list_of(schema(name)) if name == "rule" else schema(name))
    found = printed_json(f"{command} --json")
    assert [error.message[-300:] for error in Draft202012Validator(form).iter_errors(found)] == []
    # It is no schema that takes anything.
    assert list(Draft202012Validator(form).iter_errors([found] if isinstance(found, dict) else {"": found}))


def test_every_command_with_json_is_run() -> None:
    def commands(command: Any, words: str) -> Iterator[str]:
        for name, each in getattr(command, "commands", {}).items():
            yield from commands(each, f"{words}{name} ")
        if any("--json" in parameter.opts for parameter in command.params):
            yield words

    unseen = [
        words for words in commands(build_command(), "") if not any(f"{run} ".startswith(words) for _, run in RUNS)
    ]
    assert unseen == []
