"""README.md and docs are true: every command and all Python runs as it is pasted, in order; and so do the notebooks of examples."""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from iossim.cli.main import build_command, main
from iossim.hardware.load import device as load_device
from iossim.measurements.measurement_set import read_measurements

ROOT = Path(__file__).resolve().parents[1]
#: First words of commands; all other blocks are output, files and grammar.
PROGRAMS = ("iossim", "python", "python3", "pytest", "pip", ".")
_PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def documents() -> list[Path]:
    """Pages that tell a reader to type something: the README, and those of docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def python_blocks(document: Path) -> list[str]:
    return _PYTHON_BLOCK.findall(document.read_text(encoding="utf-8"))


def block_commands(document: Path) -> list[str]:
    """The commands of indented blocks and of fenced ones that are no Python, in order."""
    text = _PYTHON_BLOCK.sub("", document.read_text(encoding="utf-8"))
    found, fenced = [], False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        elif (fenced or line.startswith("    ")) and is_command(line):
            found.append(line.strip())
    return found


def is_command(line: str) -> bool:
    """Whether the first word of a line, settings of the environment aside, is a program of a reader's."""
    words = [word for word in line.split() if not re.match(r"[A-Z_]+=", word)]
    return bool(words) and (words[0] if words[0] == "." else Path(words[0]).name) in PROGRAMS


def iossim_arguments(document: Path) -> list[list[str]]:
    """The arguments of every ``iossim ...`` in blocks and between backquotes, each once."""
    text = document.read_text(encoding="utf-8")
    quoted = [one for one in re.findall(r"`([^`\n]+)`", text) if one.startswith("iossim ")]
    found: dict[str, list[str]] = {}
    for command in [*block_commands(document), *quoted]:
        for part in re.split(r"&&|\|", command.split(" #")[0]):
            words = shlex.split(part) if "iossim" in part else []
            if words and Path(words[0]).name == "iossim":
                found[shlex.join(words[1:])] = words[1:]
    return list(found.values())


#: Seconds after which a command of a document is interrupted: CI runs all of them.
LIMIT_S = 60
#: The exit codes of ``timeout`` for a command that it interrupted, and for one that it had to kill.
STILL_AT_WORK = (124, 137)


@dataclass(frozen=True)
class Ran:
    """A command that a shell has run."""

    command: str
    code: int
    seconds: int
    output: str


def run_in_one_shell(commands: Sequence[str], folder: Path, **environment: str) -> list[Ran]:
    """Run commands in order in one fresh shell that stands in a folder, with nobody at the keyboard.

    A command that takes longer than :data:`LIMIT_S` is interrupted, and has an exit code of :data:`STILL_AT_WORK`.
    """
    log = folder.parent / f"{folder.name}.log"
    lines = [f"exec > {shlex.quote(str(log))} 2>&1 < /dev/null"]
    for program in ("iossim", "python"):
        lines.append(f'{program}() {{ timeout --signal=INT --kill-after=20 {LIMIT_S} "$(type -P {program})" "$@"; }}')
    for command in commands:
        lines += ["begin=$SECONDS", command, 'printf "\\n@@ %s %s\\n" "$?" "$((SECONDS - begin))"']
    subprocess.run(["bash", "-c", "\n".join(lines)], cwd=folder, env={**os.environ, **environment}, check=False)
    return list(_ran(commands, log.read_text(encoding="utf-8", errors="replace")))


def _ran(commands: Sequence[str], log: str) -> Iterator[Ran]:
    outputs = re.split(r"\n@@ (\d+) (\d+)\n", log)
    told = zip(outputs[::3], outputs[1::3], outputs[2::3], strict=False)
    for command, (output, code, seconds) in zip(commands, told, strict=True):
        yield Ran(command, int(code), int(seconds), output)


#: What is not run, by the part of a command that tells it, with the reason. Everything else is.
NOT_RUN = {
    "-m venv": "makes an environment: the one of this test stands in its place",
    "pip install": "installs; .ci/run does what the README says of it",
    "pytest": "tests; .ci/run runs them",
    "graph_subst.pb": "a file of TASO's, which is not part of the repository",
    "--processes": "needs PyTorch, iossim[distributed]; tests/edge runs it",
    "example-gpu": "needs the plugin of examples/plugin, which tests/test_plugins.py installs",
    "substitutions.py exhaustive": "searches until 100 s have passed",
}
#: Of a search of graphs that a command leaves at its usual budget, which takes a minute, and of one that it gives seconds.
FEW_GRAPHS, FEW_SECONDS = "--rewrite-budget 6", "--rewrite-budget 5s"
#: Documents all of whose commands take a few seconds; the others are run in the slow tier.
QUICK = ("docs/corun.md", "docs/training.md")


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def commands_to_run(document: Path) -> list[str]:
    """Each command without its comment, without the parts of it that are not run, and with a small budget of rewriting."""
    found = []
    for command in block_commands(document):
        parts = [part.strip() for part in re.split(r"&&", re.sub(r"\s+#.*", "", command))]
        found.append(" && ".join(few_graphs(part) for part in parts if not any(told in part for told in NOT_RUN)))
    return [command for command in found if command]


def few_graphs(command: str) -> str:
    if "--rewrite-budget" in command:
        return re.sub(r"--rewrite-budget \d+s", FEW_SECONDS, command)
    return re.sub(r" --rewrite\b", f" {FEW_GRAPHS} --rewrite", command, count=1)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the repository with this environment as its ``.venv``, and the files that commands call the reader's own."""
    folder = tmp_path / "iossim"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "tests"))
    (folder / ".venv").symlink_to(sys.prefix)
    table = {"conv2": [{"batch": 8, "algorithm": "fft", "time_us": 105.0, "workspace_bytes": 4194304}]}
    (folder / "bench.json").write_text(json.dumps(table))
    assert main(["models", "export", "squeezenet", "--out", str(folder / "model.onnx")]) == 0
    return folder


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(each, id=name_of(each), marks=() if name_of(each) in QUICK else pytest.mark.slow)
        for each in documents()
        if commands_to_run(each)
    ],
)
def test_every_block_runs_as_pasted(document: Path, clone: Path) -> None:
    """The README activates the environment itself; who reads another page has done so. Rewriting alone searches less.

    What takes longer than the limit has shown no error until then.
    """
    if document.name == "rules.md":
        page = (ROOT / "docs" / "detail" / "rules.md").read_text(encoding="utf-8")
        rule = re.search(r"^    rule: .*?\n(?=\S)", page, re.MULTILINE | re.DOTALL)
        assert rule is not None
        (clone / "mine.yaml").write_text(textwrap.dedent(rule[0]))
    bin_folder = str(Path(sys.prefix) / "bin")
    path = [folder for folder in os.environ["PATH"].split(os.pathsep) if folder != bin_folder]
    if document.name != "README.md":
        path.insert(0, bin_folder)
    environment = {"PATH": os.pathsep.join(path), "IOSSIM_DATA_DIR": str(clone.parent / "data"), "COLUMNS": "80"}
    ran = run_in_one_shell(commands_to_run(document), clone, **environment)
    for each in ran:
        print(f"{each.seconds:4} s  {each.command}")  # pytest -rP shows it
    failed = [
        f"{each.command}\n  exit code {each.code}: {each.output[-500:]}"
        for each in ran
        if each.code not in (0, *STILL_AT_WORK)
    ]
    assert not failed, "\n".join(failed)


def test_what_is_not_run_is_there() -> None:
    """No exception outlives what it was made for."""
    commands = [command for document in documents() for command in block_commands(document)]
    assert [told for told in NOT_RUN if not any(told in command for command in commands)] == []


def test_only_the_budget_of_rewriting_is_another() -> None:
    begin = "iossim optimize m -d t4"
    assert few_graphs(f"{begin} --rewrite --out o") == f"{begin} {FEW_GRAPHS} --rewrite --out o"
    assert few_graphs(f"{begin} --rewrite r --rewrite-budget 30s") == f"{begin} --rewrite r {FEW_SECONDS}"
    assert few_graphs("iossim rules verify metaflow") == "iossim rules verify metaflow"


def test_output_and_grammar_are_no_commands() -> None:
    assert is_command("    .venv/bin/pip install -e '.[cpu]'")
    assert is_command("    . .venv/bin/activate")
    assert is_command("    IOSSIM_MUTATIONS=1000 pytest -m slow")
    assert not is_command("    inception_v3 on v100-sxm2, batch 1, fp32")
    assert not is_command("    fastest scheduler")
    assert ["compare", "inception_v3", "--device", "v100-sxm2"] in iossim_arguments(ROOT / "README.md")


def examples_of_help() -> list[list[str]]:
    lines = [line for command in build_command().commands.values() for line in (command.epilog or "").splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("  iossim ")]


@pytest.mark.parametrize(
    "arguments",
    [*(one for document in documents() for one in iossim_arguments(document)), *examples_of_help()],
    ids=shlex.join,
)
def test_commands_and_options_are_known(arguments: list[str]) -> None:
    """Between backquotes too, where a sentence may leave out what a command needs; nothing is run."""
    command = build_command()
    words = list(arguments)
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        assert words[0] in command.commands, f"iossim has no command {shlex.join(arguments)!r}"
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in words if re.match(r"--?[a-z]", word)} <= {*known, "--help", "-h"}


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(
            each, id=name_of(each), marks=pytest.mark.torch if "import torch" in python_blocks(each)[0] else ()
        )
        for each in documents()
        if python_blocks(each)
    ],
)
def test_python_of_a_document_runs(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in order, in one namespace, as a reader would type them."""
    blocks = python_blocks(document)
    if "import torch" in blocks[0]:
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "document"}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{name_of(document)}, Python block {number}", "exec"), namespace)


def test_documents_have_python() -> None:
    assert {"README.md", "docs/tutorial/pytorch.md"} <= {name_of(each) for each in documents() if python_blocks(each)}


def test_every_page_has_its_place_in_the_navigation() -> None:
    """The site is built strictly by .ci/run; this says so where mkdocs is not installed."""
    places = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    pages = {name_of(each).removeprefix("docs/") for each in documents()} - {"README.md"}
    assert pages <= set(places)
    assert len(places) == len(set(places))


def test_the_example_of_measurements_says_what_it_is() -> None:
    measured = read_measurements(ROOT / "examples" / "measured.jsonl")
    assert measured.header.device == load_device(str(ROOT / "examples" / "cpu.yaml")).name
    assert "onnxruntime_cpu" in measured.header.source
    assert "other work beside it" in measured.header.source
    assert measured.header.date
    assert len(measured.measurements) > 40


FOLDER = ROOT / "examples" / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.py"))


def cells(text: str) -> list[str]:
    """The code cells of the percent format."""
    parts = re.split(r"^# %%(.*)\n", text, flags=re.MULTILINE)
    return [code for kind, code in zip(parts[1::2], parts[2::2], strict=True) if "[markdown]" not in kind]


def shown(cell: str, namespace: dict[str, object], name: str) -> object:
    """Run a cell as a notebook does: the value of its last expression."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)
    return None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), namespace)


def test_all_three_are_there() -> None:
    assert NOTEBOOKS == ["calibration.py", "study.py", "tutorial.py"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_cell_runs_and_shows_something(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("vl_convert")
    monkeypatch.chdir(FOLDER)
    before = sorted(Path.cwd().iterdir())
    namespace: dict[str, object] = {"__name__": "notebook"}
    for number, cell in enumerate(cells((FOLDER / name).read_text(encoding="utf-8")), 1):
        value = shown(cell, namespace, f"{name}, cell {number}")
        display = getattr(value, "_repr_html_", None) or getattr(value, "_repr_svg_", None)
        assert display() if display is not None else value, f"{name}: cell {number} shows nothing"
    assert sorted(Path.cwd().iterdir()) == before, "a notebook leaves nothing beside itself"
