"""Sizes of memory as people write them."""

from __future__ import annotations

import pytest

from iossim.base.errors import OptionError
from iossim.base.memory import size_bytes


@pytest.mark.parametrize(
    ("text", "size"), [("64MiB", 64 << 20), ("1.5 GiB", 3 << 29), ("0B", 0), (" 512 KiB ", 512 << 10)]
)
def test_sizes(text: str, size: int) -> None:
    assert size_bytes(text, "workspace") == size


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("64", "say 64MiB"),
        ("64MB", "KiB, MiB, GiB"),
        ("much", "'much'"),
        ("-1MiB", "not a size"),
        ("0.3B", "no whole number"),
    ],
)
def test_what_is_no_size(text: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        size_bytes(text, "workspace")
