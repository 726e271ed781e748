"""Rules for tests of what draws, tries and verifies rules."""

from __future__ import annotations

from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.rule_file import read_rules


def rule(source: str, target: str, outputs: str, *conditions: str, filled: tuple[str, ...] = ()) -> Rule:
    """A rule of ops that are written as in a file, separated by semicolons."""
    lines = ["rule: tried", "source:", *_listed(source), *(["target:", *_listed(target)] if target else [])]
    lines += [f"outputs: {{{outputs}}}"]
    if conditions:
        lines += ["conditions:", *(f"  - {condition!r}" for condition in conditions)]
    if filled:
        lines += ["filled:", *(f"  - {each}" for each in filled)]
    return read_rules("\n".join(lines), "test")[0]


def _listed(ops: str) -> list[str]:
    return [f"  - {op.strip()}" for op in ops.split(";")]


#: Two convolutions of one input merged: right only without groups.
MERGED = rule(
    "y = conv(x, v, pads=(1, 1, 1, 1), groups=g); z = conv(x, w, pads=(1, 1, 1, 1), groups=h)",
    "u = concat(v, w, axis=0); t = conv(x, u, pads=(1, 1, 1, 1), groups=x.shape[1] // u.shape[1]); "
    "y1, z1 = split(t, axis=1, sizes=(v.shape[0], w.shape[0]))",
    "y: y1, z: z1",
    "v.shape[2:] == (3, 3)",
    "w.shape[2:] == (3, 3)",
)
ASSOCIATIVE = rule(
    "t = matmul(a, b); y = matmul(t, c)",
    "u = matmul(b, c); z = matmul(a, u)",
    "y: z",
    "len(a.shape) == 2",
    "len(b.shape) == 2",
    "len(c.shape) == 2",
)
