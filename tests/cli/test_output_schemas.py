"""What each command prints with ``--json`` is valid by its schema, and has no key that the schema does not name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import printed, printed_json
from jsonschema import Draft202012Validator
from small_runs import FAKE, RUNS, write_files

from iossim.cli.main import build_command
from iossim.report.schemas import schema

#: Libraries that a command needs.
NEEDS = {"deploy": "onnxruntime", "rules-verify": "z3"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of schedules and runs of a study."""
    folder = tmp_path_factory.mktemp("made")
    write_files(folder)
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
    form = sealed({"type": "array", "items": schema(name)} if name == "rule" else schema(name))
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
