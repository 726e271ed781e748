"""Numbers and JSON of users' files, and sizes of memory as people write them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iossim.base.errors import OptionError
from iossim.base.memory import size_bytes
from iossim.base.numbers import LARGEST, NumberError, read_json, read_number

ANYTHING = st.one_of(st.floats(), st.integers(), st.integers(10**300, 10**400), st.text(), st.none(), st.booleans())


@given(ANYTHING, st.booleans())
def test_a_number_that_can_be_or_a_reason(value: object, positive: bool) -> None:
    for given_value in (value, str(value)):
        try:
            found = read_number(given_value, positive=positive)
        except NumberError:
            continue
        assert found > 0 if positive else found >= 0
        assert found <= LARGEST
        assert found == float(given_value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "is empty"),
        (None, "is empty"),
        ("x", "is not a number"),
        ("1_000", "is not a number"),
        (True, "is not a number"),
        (math.nan, "is not a number"),
        ("-inf", "is not finite"),
        (10**400, "is not finite"),
        (-1, "is negative"),
        (1e300, "is more than 1e+18, and nothing is"),
    ],
)
def test_reasons(value: object, reason: str) -> None:
    with pytest.raises(NumberError, match=f"^{reason}$".replace("+", r"\+")):
        read_number(value)


@given(st.recursive(st.one_of(st.none(), st.integers(-(10**30), 10**30), st.text()), st.lists))
def test_json_is_what_it_was(document: Any) -> None:
    assert read_json(json.dumps(document)) == document


def test_json_made_to_hurt() -> None:
    assert read_json("9" * 5000) == math.inf
    assert read_json(f"[{'9' * 60}]") == [pytest.approx(1e60)]
    for text in ("[" * 100_000, '{"a":' * 100_000):
        with pytest.raises(ValueError, match="nested too deeply"):
            read_json(text)


@pytest.mark.parametrize(
    ("text", "size"), [("64MiB", 64 << 20), ("1.5 GiB", 3 << 29), ("0B", 0), (" 512 KiB ", 512 << 10)]
)
def test_sizes_of_memory(text: str, size: int) -> None:
    assert size_bytes(text, "workspace") == size


@pytest.mark.parametrize(
    ("text", "reason"),
    [("64", "say 64MiB"), ("64MB", "KiB, MiB, GiB"), ("much", "'much'"), ("-1MiB", "not a size"), ("0.3B", "no whole")],
)
def test_text_that_is_no_size_of_memory(text: str, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        size_bytes(text, "workspace")
