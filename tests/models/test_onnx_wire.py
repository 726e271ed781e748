"""What is counted in the bytes of a model file is what protobuf finds in it."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import onnx
import pytest
from exported_networks import NETWORKS
from hypothesis import given
from hypothesis import strategies as st
from seeded_weights import LIGHT_MODELS

from iossim.models.onnx import file as onnx_file
from iossim.models.onnx.file import contents

MODELS = {
    **{name: make().SerializeToString() for name, (make, _) in NETWORKS.items()},
    "densenet": (LIGHT_MODELS / "light_densenet121.onnx").read_bytes(),
    "numbers": onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g () => (int64[5] y) <int64[5] a = {1, -1, 200, 1099511627776, 0}, '
        "int32[3] b = {1, -1, 200}> { y = Identity(a) }"
    ).SerializeToString(),
}


@pytest.fixture(autouse=True)
def files_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "_SMALL_FILE_BYTES", 0)


def mapped(data: bytes) -> mmap.mmap:
    view = mmap.mmap(-1, max(1, len(data)))
    view.write(data)
    return view


def fields(message: Any) -> int:
    """Each field of a message and of those in it, as often as it is written."""
    total = 0
    for field, value in message.ListFields():
        several = [value] if isinstance(value, str | bytes) or not hasattr(value, "__len__") else list(value)
        if field.message_type is not None:
            total += len(several) + sum(map(fields, several))
        else:
            total += 1 if field.GetOptions().packed else len(several)
    return total


@pytest.mark.parametrize("name", MODELS)
def test_every_field_is_counted(name: str) -> None:
    found = contents(mapped(MODELS[name]), 1 << 30)
    assert found.pieces == fields(onnx.ModelProto.FromString(MODELS[name]))


def test_packed_numbers_by_their_size_large_counts_ended_and_small_files_not_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert contents(mapped(MODELS["numbers"]), 1 << 30).packed_bytes == 2 * (5 * 8 + 3 * 4)
    assert contents(mapped(MODELS["densenet"]), 100).pieces == 101
    monkeypatch.undo()
    assert contents(mapped(MODELS["densenet"]), 100).pieces == 0


@given(st.binary(max_size=200), st.integers(0, 200), st.binary(max_size=8))
def test_what_is_no_protobuf_ends_it(noise: bytes, place: int, damage: bytes) -> None:
    model = MODELS["numbers"]
    for data in (noise, model[:place], model[:place] + damage + model[place:]):
        found = contents(mapped(data), 1000)
        assert 0 <= found.pieces <= max(1, len(data))


def test_the_file_is_read_from_disk_once(tmp_path: Path) -> None:
    """A file that is mapped can be deleted and written anew."""
    path = tmp_path / "m.onnx"
    for name in ("unet", "tagger"):
        path.write_bytes(MODELS[name])
        assert onnx_file.read_model(path).proto.SerializeToString() == MODELS[name]
        path.unlink()
