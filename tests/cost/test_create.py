"""Cost models by name."""

from __future__ import annotations

from inspect import signature
from pathlib import Path

import pytest

import iossim
from iossim.base.errors import IossimError, OptionError
from iossim.cost.create import COST_MODELS, cost_model_names, create_cost_model
from iossim.cost.measured.cost_model import MeasuredCostModel
from iossim.cost.measured.store_file import StoreError
from iossim.execution.backends import backend_names
from iossim.ir.types import Precision


def test_names() -> None:
    """Those with a file of their own, and the backends, which measure."""
    names = cost_model_names()
    assert names == sorted(set(names))
    assert {"random", "replay", "simulator", "table", *backend_names()} <= set(names)
    assert not {"create", "measured", "measurement_store", "model", "path", "profiling"} & set(names)


def test_a_backend_measures(tmp_path: Path) -> None:
    model = create_cost_model("numpy_reference", None, Precision.FP32, "paper", tmp_path / "store.sqlite")
    assert isinstance(model, MeasuredCostModel)
    assert model.identity.name == "numpy_reference"
    assert model.identity.engine == "paper"
    assert model.store.path == tmp_path / "store.sqlite"
    with pytest.raises(OptionError, match="measures 'cpu', not 't4'; leave out `device`"):
        create_cost_model("numpy_reference", iossim.device("t4"), Precision.FP32, "paper", tmp_path / "store.sqlite")
    with pytest.raises(OptionError, match="has no option 'threads'"):
        create_cost_model("numpy_reference:threads=2", None, Precision.FP32, "paper", tmp_path / "store.sqlite")
    with pytest.raises(OptionError, match="'two' is not a setting"):
        create_cost_model("numpy_reference:two", None, Precision.FP32, "paper", tmp_path / "store.sqlite")


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


@pytest.mark.parametrize("spec", ["", ":", "create", "path", "model", "measured", "Simulator", "os"])
def test_what_is_no_cost_model(spec: str) -> None:
    with pytest.raises(OptionError, match=r"known: .*random.*simulator.*table"):
        create_cost_model(spec, None, Precision.FP32, "paper")


@pytest.mark.parametrize(
    "arguments",
    [("simulator", None), ("simulator", "t5"), ("simulator", "t4", "fp17"), ("simulator", "t4", "fp32", "grap")],
)
def test_mistakes(arguments: tuple[str, ...]) -> None:
    with pytest.raises(IossimError):
        iossim.cost_model(*arguments)


def test_every_own_cost_model_is_found_by_looking_into_its_package() -> None:
    """Replay is no exception: each has a ``create`` of one signature, which is told the store of measurements."""
    for name in ("perturbed", "random", "replay", "simulator", "table"):
        create = COST_MODELS.find(name)
        assert list(signature(create).parameters) == ["device", "precision", "engine", "argument", "store"]


def test_replay_reads_the_store_that_is_chosen(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no measurement store .*chosen\.sqlite"):
        create_cost_model("replay", None, Precision.FP32, "paper", tmp_path / "chosen.sqlite")
