"""The options by which a model is read: the same for every command that reads one, and remembered by schedules."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import onnx
import pytest
from command_line import printed, printed_json, refused
from onnx import TensorProto, helper
from typer.main import get_command

from iossim.cli.main import build_app
from iossim.cli.option_groups import ModelOptions

#: Commands that read a model, with what they need besides.
COMMANDS = {
    "models show": "",
    "search-space": "",
    "compare": "-d t4",
    "optimize": "-d t4",
    "predict": "-d t4",
    "check": "-d t4 --max-latency-ms 100",
    "profile": "--backend numpy_reference --pairs 0 --stages 0 --rounds 1 --warm-up 0",
    "bench": "--backend numpy_reference --schedulers sequential --rounds 1 --warm-up 0",
}


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A model with open dimensions in both inputs, and with operators that iossim does not know."""
    nodes = [
        helper.make_node("GridSample", ["x", "grid"], ["sampled"]),
        helper.make_node("Trilu", ["sampled"], ["lower"]),
        helper.make_node("Relu", ["lower"], ["y"]),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 2, 6, 6]),
        helper.make_tensor_value_info("grid", TensorProto.FLOAT, ["batch", "side", "side", 2]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "foreign", inputs, outputs)
    path = tmp_path / "foreign.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_every_command_that_reads_a_model_has_all_options() -> None:
    app = get_command(build_app())
    for name in COMMANDS:
        command = app
        for word in name.split():
            command = command.commands[word]  # type: ignore[attr-defined]
        names = {parameter.name for parameter in command.params}
        assert {field.name for field in fields(ModelOptions)} <= names, name


@pytest.mark.parametrize("command", COMMANDS)
def test_dimensions_and_strict(command: str, foreign: Path, tmp_path: Path) -> None:
    arguments = f"{command} {foreign} --dim batch=3 --dim side=4 {COMMANDS[command]}"
    if "--backend" in arguments:
        arguments += f" --store {tmp_path / 'store.sqlite'}"
    text = printed(arguments)
    if command != "search-space":  # which prices nothing
        assert "GridSample, Trilu" in " ".join(text.split()) or command == "check"
    assert "GridSample, Trilu; leave out --strict" in refused(f"{arguments} --strict")


def test_a_schedule_remembers_how_its_model_was_read(foreign: Path, tmp_path: Path) -> None:
    printed(f"optimize {foreign} --dim batch=3 --shape grid=3x4x4x2 -d t4 --out {tmp_path} --no-plot")
    saved = tmp_path / "schedule.json"
    arguments = f"run {saved} --backend numpy_reference --rounds 1 --warm-up 0"
    document = printed_json(f"{arguments} --json")
    assert document["output_error"] < 1e-6
    assert document["remarks"] == [
        "Priced as memory traffic, since iossim does not know what they compute: GridSample, Trilu."
    ]
    assert "GridSample, Trilu" in printed(arguments)
    assert "GridSample, Trilu; leave out --strict" in refused(f"{arguments} --strict")
