"""What a profile's file may say of where its parameters come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from iossim.base.errors import DeviceError
from iossim.hardware.load import device
from iossim.hardware.write import profile_yaml


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("kind", "guessed", "provenance.kind"),
        ("date", "yesterday", "provenance.date"),
        ("bands", {"conv": []}, "'conv' must end"),
        ("bands", {"conv": [{"up_to_us": 5, "rows": 3, "low": 0.9, "high": 1.1}]}, "'conv' must end"),
        (
            "bands",
            {
                "conv": [
                    {"up_to_us": 50, "rows": 3, "low": 0.9, "high": 1.1},
                    {"up_to_us": 5, "rows": 3, "low": 0.9, "high": 1.1},
                    {"rows": 3, "low": 0.9, "high": 1.1},
                ]
            },
            "'conv' must ascend",
        ),
        ("bands", {"conv": [{"rows": 3, "low": 1.2, "high": 1.3}]}, "low <= 1 <= high"),
        ("bands", {"conv": [{"rows": 3, "low": 0.0, "high": 1.3}]}, "bands.conv.0.low"),
        ("resamples", {"a": [1.0], "b": [1.0, 2.0]}, "as many values"),
        ("spread", {"a": float("nan")}, "provenance.spread.a"),
        ("held_out_fraction", 1.0, "held_out_fraction"),
        ("data_set", "old name", "provenance.data_set"),
    ],
)
def test_a_bad_field_is_named_in_one_line(tmp_path: Path, field: str, value: Any, word: str) -> None:
    data = yaml.safe_load(profile_yaml(device("t4")))
    data["provenance"] = {"kind": "fitted", "note": "", field: value}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(DeviceError) as caught:
        device(str(path))
    message = str(caught.value)
    assert "mine.yaml" in message
    assert word in message
    assert "\n" not in message
