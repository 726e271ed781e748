"""Cost models by name."""

from __future__ import annotations

import pytest

import iossim
from iossim.cost.create import cost_model_names, create_cost_model
from iossim.errors import IossimError, OptionError
from iossim.ir.types import Precision


def test_names() -> None:
    assert cost_model_names() == ["random", "simulator", "table"]


def test_what_a_name_makes() -> None:
    t4 = iossim.device("t4")
    assert create_cost_model("simulator", t4, Precision.FP16, "graph").identity.to_json() == {
        "name": "simulator",
        "device": "t4",
        "precision": "fp16",
        "engine": "graph",
        "version": create_cost_model("simulator", t4, Precision.FP16, "graph").identity.version,
    }
    assert create_cost_model("random:7", None, Precision.FP32, "paper").identity.device == "random"
    assert create_cost_model("random:7", t4, Precision.FP32, "paper").identity.device == "t4"
    assert create_cost_model("random", t4, Precision.FP32, "paper") == create_cost_model(
        "random:0", t4, Precision.FP32, "paper"
    )


@pytest.mark.parametrize("spec", ["", ":", "create", "memo", "model", "numpy_reference", "Simulator", "os"])
def test_what_is_no_cost_model(spec: str) -> None:
    with pytest.raises(OptionError, match="known: random, simulator, table"):
        create_cost_model(spec, None, Precision.FP32, "paper")


@pytest.mark.parametrize(
    "arguments",
    [("simulator", None), ("simulator", "t5"), ("simulator", "t4", "fp17"), ("simulator", "t4", "fp32", "grap")],
)
def test_mistakes(arguments: tuple[str, ...]) -> None:
    with pytest.raises(IossimError):
        iossim.cost_model(*arguments)
