"""The substitutions of a rewritten network, as text and as a Graphviz drawing of what each changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from iossim.report.dot import quoted
from iossim.tasks.explain_rewriting import ExplainedStep, Part
from iossim.transforms.rewriting.scheduled import rewritten_by

#: So many steps are told with what they changed unless all are asked for.
_FEW = 3


def rewriting_lines(steps: Sequence[ExplainedStep], whole: bool) -> Iterator[str]:
    """Each step in a line; below it what it changed, before and after, if that is asked for (``whole``) or steps are few."""
    yield f"the network was {rewritten_by(len(steps))}{'' if whole or len(steps) <= _FEW else ' (--all tells what each changed)'}"
    for number, step in enumerate(steps, 1):
        yield f"step {number}: {step.rule}{_worth(step)}"
        for sign, part in (("-", step.before), ("+", step.after)) if whole or len(steps) <= _FEW else ():
            yield from (f"  {sign} {part.line(node)}" for node in part.nodes)


def rewriting_dot(name: str, steps: Sequence[ExplainedStep]) -> str:
    """DOT text: for each step what it changed, before and after, side by side. Equal arguments give equal text."""
    return "\n".join(_dot_lines(name, steps)) + "\n"


def _worth(step: ExplainedStep) -> str:
    if step.before_us is None or step.after_us is None or step.saves_us is None:
        return ""
    verb = "saves" if step.saves_us >= 0 else "costs"
    return f": {step.before_us:.1f} -> {step.after_us:.1f} us, {verb} {abs(step.saves_us):.1f} us"


def _dot_lines(name: str, steps: Sequence[ExplainedStep]) -> Iterator[str]:
    yield f"digraph {quoted(name)} {{"
    yield f"  label={quoted(f'{name}, {rewritten_by(len(steps))}')}; labelloc=t; fontname=Helvetica;"
    yield '  node [shape=box, style="rounded,filled", fillcolor=white, fontname=Helvetica, fontsize=10];'
    yield "  edge [arrowsize=0.6, color=gray40];"
    for number, step in enumerate(steps, 1):
        yield f"  subgraph cluster_step{number} {{"
        yield f'    label={quoted(f"{number}. {step.rule}{_worth(step)}")}; style="rounded"; color=gray50;'
        for side, part, colour in (("before", step.before, "#f7d3bd"), ("after", step.after, "#c5e8dc")):
            yield f"    subgraph cluster_step{number}_{side} {{"
            yield f'      label={side}; style="dashed"; fontsize=9;'
            yield from (f"      {line}" for line in _part_lines(f"s{number}{side}", part, colour))
            yield "    }"
        yield "  }"
    yield "}"


def _part_lines(prefix: str, part: Part, colour: str) -> Iterator[str]:
    """The ops of a part, and the values that they read from outside it; constants are left out."""
    types, constants = part.graph.types, part.graph.constants
    inside = {value for node in part.nodes for value in node.outputs}
    read = dict.fromkeys(value for node in part.nodes for value in node.inputs if value not in constants)
    made: dict[str, str] = {}
    for number, value in enumerate(value for value in read if value not in inside):
        made[value] = f"{prefix}_in{number}"
        label = quoted(f"{value}\n{types[value]}")
        yield f"{made[value]} [label={label}, shape=plaintext, style=solid];"
    for number, node in enumerate(part.nodes):
        made |= dict.fromkeys(node.outputs, f"{prefix}_{number}")
        shapes = "\n".join(str(types[value]) for value in node.outputs)
        label = quoted(f"{node.name}\n{node.op.kind}\n{shapes}")
        yield f'{prefix}_{number} [label={label}, fillcolor="{colour}"];'
        for value in node.inputs:
            if value in made:
                yield f"{made[value]} -> {prefix}_{number};"
