"""The options of loading and their text: what a network's source keeps is what it was loaded with."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from iossim.base.errors import ModelError
from iossim.ir.network import ModelSource, Network
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.models.options import LoadOptions
from iossim.models.sources import ios_file, onnx_file, torch_module, zoo

#: An option each that is not its default, and its text in a source.
WRITTEN: dict[str, tuple[Any, dict[str, str]]] = {
    "dtype": (Precision.FP16, {"dtype": "fp16"}),
    "graphs": ("some/folder", {"graphs": "some/folder"}),
    "units": ("conv-relu", {"units": "conv-relu"}),
    "max_block": (7, {"max_block": "7"}),
    "seed": (3, {"seed": "3"}),
    "passes": (("one", "two"), {"passes": "one,two"}),
    "shapes": ({"x": (1, 2), "a.b": (3,)}, {"shape.a.b": "3", "shape.x": "1x2"}),
    "dimensions": ({"N": 4}, {"dimension.N": "4"}),
    "batch": (5, {}),
    "training": (True, {"training": "True"}),
    "block": ("stem", {"block": "stem"}),
}
#: What a source does not keep: how strictly the model is read, and what stays in memory.
NOT_KEPT = {"strict", "example_inputs", "onnx_file"}


@pytest.fixture(scope="module")
def network() -> Network:
    return load("ios_sample")


def test_every_option_is_kept_or_named_here() -> None:
    assert {field.name for field in fields(LoadOptions)} == WRITTEN.keys() | NOT_KEPT


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_an_option_is_read_back_as_it_was(name: str, network: Network) -> None:
    value, texts = WRITTEN[name]
    options = LoadOptions(**{name: value})
    source = options.source(replace(network, precision=options.precision))
    assert dict(source.options) == texts
    assert LoadOptions.of_source(source) == replace(options, dtype=options.precision, batch=options.batch or 1)


def test_defaults_have_no_text(network: Network) -> None:
    assert LoadOptions().source(network) == ModelSource("ios_sample", 1)


@pytest.mark.parametrize("option", ["shape", "seed.x", "colour", "strict"])
def test_what_is_no_kept_option_is_refused(option: str) -> None:
    with pytest.raises(ModelError, match=f"unknown option '{option}'"):
        LoadOptions.of_source(ModelSource("squeezenet", 1, ((option, "1"),)))


@pytest.mark.parametrize(
    ("model", "source"),
    [
        ("squeezenet", zoo),
        ("no/model", zoo),
        ("model.onnx", onnx_file),
        (Path("model"), onnx_file),
        (__file__, onnx_file),
        ("schedule.json", ios_file),
        (Path("schedule.JSON"), ios_file),
        (object(), torch_module),
        ("torch:Module", torch_module),
    ],
)
def test_the_first_source_that_takes_a_model_loads_it(model: Any, source: Any) -> None:
    sources = (torch_module, ios_file, onnx_file, zoo)
    assert next(each for each in sources if each.takes(model)) is source
