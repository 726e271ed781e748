"""Mutations of text files that people write and exchange: YAML and JSON, by their letters and by their values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from fuzz_mutations import flip_bits, truncate

#: What a value may be replaced by.
VALUES: tuple[Any, ...] = (
    None, True, "", "x", "1.5 GHz", "NaN", -1, 0, 1, 2**31, 2**63, 10**30, 0.0, -0.5, 1e308, 1e-308, 1e999, [], [[]], {}, {"": 0},
    ["a", "a"], "n" * 10_000, "../../etc/passwd", "\u0000", "line\nbreak", float("nan"), float("-inf"),
)  # fmt: skip
#: Pieces of YAML and JSON, and of neither.
PIECES = (
    "\t", "\n", ":", ": ", "- ", "{", "}", "[", "]", "&a ", "*a", "<<: *a", "!!python/object/apply:os.system [id]", "!!binary x",
    "2020-13-45", "1:99:99", "0x", "1_000", "~", "'", '"', "#", "? ", "|", ">", "%YAML 9.9", "---", "\u2028", "\ufeff", "9" * 5000,
    "NaN", "Infinity", "\\ud800", "[" * 5000, "{a: " * 3000,
)  # fmt: skip


def mutated(text: bytes, name: str, seed: int) -> bytes:
    """A file after one mutation; what is no JSON is mutated by its letters."""
    return MUTATIONS[name](text, Random(seed)) if text else text


def insert_piece(text: bytes, choose: Random) -> bytes:
    place = choose.randrange(len(text) + 1)
    return text[:place] + choose.choice(PIECES).encode(errors="surrogatepass") + text[place:]


def change_lines(text: bytes, choose: Random) -> bytes:
    """A line left out, twice, elsewhere, or indented otherwise."""
    lines = text.splitlines(keepends=True)
    place, other = choose.randrange(len(lines)), choose.randrange(len(lines))
    match choose.randrange(4):
        case 0:
            del lines[place]
        case 1:
            lines.insert(other, lines[place])
        case 2:
            lines[place], lines[other] = lines[other], lines[place]
        case _:
            lines[place] = choose.choice((b" ", b"\t", b"   ")) + lines[place]
    return b"".join(lines)


def change_number(text: bytes, choose: Random) -> bytes:
    """A run of digits as another number."""
    starts = [index for index, letter in enumerate(text) if chr(letter).isdigit()]
    if not starts:
        return text
    start = end = choose.choice(starts)
    while end < len(text) and chr(text[end]).isdigit():
        end += 1
    return text[:start] + str(choose.choice(VALUES)).encode(errors="replace") + text[end:]


def change_value(text: bytes, choose: Random) -> bytes:
    """A value of a JSON document, or of one of its lines, replaced, left out or given another key."""
    lines = text.splitlines()
    one_each = len(lines) > 1 and all(line.startswith(b"{") and line.endswith(b"}") for line in lines[:3])
    place = choose.randrange(len(lines)) if one_each else 0
    try:
        document = json.loads(lines[place] if one_each else text)
    except (ValueError, RecursionError):  # an earlier mutation may nest deeply
        return insert_piece(text, choose)
    holders = [each for each in _holders(document) if len(each)]
    if not holders:
        return text
    holder = choose.choice(holders)
    key = choose.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    match choose.randrange(4):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[choose.choice(("extra", "", "latency_us", "blocks"))] = holder.pop(key)
        case _:
            holder[key] = choose.choice(VALUES)
    changed = json.dumps(document).encode()
    return b"\n".join([*lines[:place], changed, *lines[place + 1 :]]) + b"\n" if one_each else changed


def _holders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for each in value.values() if isinstance(value, dict) else value:
            yield from _holders(each)


MUTATIONS: dict[str, Callable[[bytes, Random], bytes]] = {
    function.__name__: function
    for function in (truncate, flip_bits, insert_piece, change_lines, change_number, change_value)
}


def yaml_bombs(profile: str) -> dict[str, tuple[str, str]]:
    """Profiles that no reader should choke on: the text, and what is said of it."""
    doubled = "a0: &a0 {k: 1}\n" + "".join(
        f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}\n" for level in range(1, 10)
    )
    laughs = "a0: &a0 [x]\n" + "".join(
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 30)
    )
    count = "sm_count: {value: 40, source: datasheet}"
    assert count in profile
    return {
        "merged mappings": (doubled + profile, "anchors and aliases"),
        "aliases": (laughs + profile, "anchors and aliases"),
        "deep lists": (profile + "x: " + "[" * 100_000, "nested more than"),
        "deep mappings": (profile + "x: " + "{a: " * 50_000, "nested more than"),
        "key twice": (f"{profile}\nname: other\n", "given twice"),
        "field twice": (profile.replace(count, f"{count}\n  {count}"), "given twice"),
        "tabs": (profile.replace("  sm_count", "\tsm_count"), "is not YAML"),
        "digits": (profile.replace("value: 40", f"value: {'9' * 10_000}"), "cannot be read"),
        "month thirteen": (profile.replace("value: 40", "value: 2020-13-01"), "cannot be read"),
        "code": (profile.replace("value: 40", "value: !!python/object/apply:os.system [id]"), "sm_count"),
        "not a number": (profile.replace("value: 40", "value: .nan"), "datasheet.sm_count.value"),
        "infinite": (profile.replace("value: 40", "value: .inf"), "datasheet.sm_count.value"),
        "unit in the value": (profile.replace("value: 40", "value: 40 SMs"), "datasheet.sm_count.value"),
        "quoted number": (profile.replace("value: 40", 'value: "40"'), "datasheet.sm_count.value"),
        "two documents": (f"{profile}\n---\n{profile}", "document"),
        "too long": ("#" * (1 << 21) + "\n" + profile, "characters"),
        "only a comment": ("# nothing\n", "not a mapping"),
    }
