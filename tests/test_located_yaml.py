"""Whatever a file of YAML says, it is plain values, or one error with its line."""

from __future__ import annotations

import pytest
import yaml

from iossim.base.located_yaml import Dumper, LocatedYamlError, read_located, read_located_documents


@pytest.mark.parametrize(
    "value",
    ["2020-13-01", "9" * 5000, "!!int ''", "!!int x", "!!float ''", "!!bool x", "!!timestamp x", "!own x", "=", "*a", "&a 1"],
)  # fmt: skip
def test_a_value_that_cannot_be_read_names_its_line(value: str) -> None:
    with pytest.raises(LocatedYamlError) as caught:
        read_located(f"first: 1\nsecond:\n  third: {value}\n")
    assert caught.value.line == 3
    assert "\n" not in str(caught.value)


def test_tags_make_nothing_but_plain_values() -> None:
    assert read_located("a: !!python/object/apply:os.getcwd []\nb: !!set {c}").values == {"a": [], "b": {"c": None}}


@pytest.mark.parametrize("text", ["0E0", "1e3", "-2.5e-7", "1.0", "on", "null", "0x10", "plain"])
def test_text_that_looks_like_a_number_stays_text(text: str) -> None:
    written = yaml.dump({"value": text}, Dumper=Dumper)
    assert read_located(written).values == {"value": text}


def test_documents_know_their_lines_in_the_file() -> None:
    first, second = read_located_documents("# why\n---\na: 1\nb: [2,\n  3]\n---\n# nothing\n---\nc:\n  d: 4\n")
    assert first.values == {"a": 1, "b": [2, 3]}
    assert first.lines == {(): 3, ("a",): 3, ("b",): 4, ("b", 0): 4, ("b", 1): 5}
    assert second.values == {"c": {"d": 4}}
    assert second.lines == {(): 9, ("c",): 9, ("c", "d"): 10}
    assert read_located_documents("") == []
    with pytest.raises(LocatedYamlError, match="found another document") as caught:
        read_located("a: 1\n---\nb: 2\n")
    assert caught.value.line == 2
    with pytest.raises(LocatedYamlError, match="is given twice, first in line 3") as caught:
        read_located_documents("a: 1\n---\nb: 2\nb: 3\n")
    assert caught.value.line == 4
