"""The remedy for a misspelt name."""

from __future__ import annotations

import pytest

from iossim.base.errors import did_you_mean

DEVICES = ["a100-pcie-40gb", "a100-sxm-40gb", "h100-sxm", "t4", "v100-sxm2"]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("v100-sxm3", "v100-sxm2"),
        ("V100", "v100-sxm2"),
        ("a100", "a100-pcie-40gb"),  # the beginning of a name, though more letters are those of h100-sxm
    ],
)
def test_nearest_name(name: str, nearest: str) -> None:
    assert did_you_mean(name, DEVICES).startswith(f"did you mean {nearest!r}? ")


@pytest.mark.parametrize("name", ["", "zzz", "a device"])
def test_nothing_is_near(name: str) -> None:
    assert did_you_mean(name, DEVICES) == f"known: {', '.join(DEVICES)}"


def test_names_are_listed_in_order() -> None:
    assert did_you_mean("x", reversed(DEVICES)).endswith(f"known: {', '.join(DEVICES)}")
