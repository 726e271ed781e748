"""Rules for tests of what matches, applies, draws, tries and verifies rules, and all graphs that rules make."""

from collections.abc import Sequence
from math import inf
from pathlib import Path

from iossim.ir.graph import Graph
from iossim.transforms.rewriting.application import apply
from iossim.transforms.rewriting.matching import find_matches
from iossim.transforms.rewriting.rule import Rule
from iossim.transforms.rewriting.rule_file import read_rules
from iossim.transforms.rewriting.rule_sets import rule_set

_FILE = Path(__file__).with_name("place_rules.yaml")
RULES = read_rules(_FILE.read_text(encoding="utf-8"), _FILE.name)
RULE = {rule.name: rule for rule in RULES}
#: The rules that searches take by default, and all that ship.
DEFAULT = (*rule_set("metaflow"), *rule_set("simplify"))
SHIPPED = (*DEFAULT, *rule_set("layouts"))
NAMED = {rule.name: rule for rule in SHIPPED}
#: Rules of which only so many graphs can be made, since none makes an op larger again and again.
FEW = tuple(
    NAMED[name] for name in ("merge-convolutions", "relus-of-split-into-2", "enlarge-1x1-to-3x3", "relu-of-relu")
)


def every_graph(graph: Graph, rules: Sequence[Rule], most: float = inf) -> list[Graph]:
    """All graphs that rules make of one, itself the first; the one alone if they are more than ``most``."""
    found, waiting = {graph.hash: graph}, [graph]
    while waiting and len(found) <= most:
        now = waiting.pop(0)
        for made in (apply(now, match) for rule in rules for match in find_matches(now, rule)):
            if made is not None and made.graph.hash not in found:
                found[made.graph.hash] = made.graph
                waiting.append(made.graph)
    return list(found.values()) if len(found) <= most else [graph]


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
