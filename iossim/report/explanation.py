"""An explanation of a schedule as text: a few lines a stage, and the substitutions of a rewritten network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import fsum, isclose

from rich.table import Table

from iossim.base.display import counted
from iossim.base.tables import Cell, described_table
from iossim.cost.facts import StageFacts
from iossim.report.schedule_tables import expectation_lines, heading, number_words, speedup_words, stage_words
from iossim.schedule.batch import Strategy
from iossim.schedule.schedule import Stage
from iossim.tasks.explain import Choice, Explanation, StageExplanation
from iossim.tasks.explain_rewriting import ExplainedStep
from iossim.transforms.rewriting.scheduled import rewritten_by

#: Smaller parts of a stage's time are not mentioned.
_SMALL = 0.08
#: This many stages are described unless all are asked for.
_FEW = 10
#: Most kinds of stages that an alternative names.
_MOST_KINDS = 3
#: Descriptions of what limits a stage; of a processor they say cores instead of SMs.
_WORDS = {
    "unfilled SMs": "too few blocks to fill the SMs",
    "CUDA cores": "arithmetic on CUDA cores instead of tensor cores",
    "latency": "unhidden latency",
    "kernel start": "kernel start-up",
    "host": "kernel launches by the host",
    "queue": "waiting for free SMs",
    "sharing": "interference between kernels",
    "synchronisation": "synchronisation between stages",
    "power": "arithmetic at the board's power limit",
}


def overview(explanation: Explanation) -> list[str]:
    found = explanation.schedule
    speedup = speedup_words(found, explanation.sequential_us)
    lines = [f"{heading(found)} in {counted(len(found.stages), 'stage')}{speedup}", *expectation_lines(found)]
    if explanation.limits_us:
        limits_us = {named_limit(name, explanation.stages[0].facts): us for name, us in explanation.limits_us.items()}
        lines.append(f"Time by limit: {divided(limits_us, found.latency_us)}")
    if explanation.could_save_us:
        saved = f"{explanation.could_save_us:.1f} us ({explanation.could_save_us / found.latency_us:.1%})"
        lines.append(f"The best stages of each block would save {saved} under this cost model")
    elif explanation.could_save_us is not None:
        lines.append("No block has a faster set of stages under this cost model")
    lines += [f"Unknown: {reason}" for reason in explanation.unknown]
    return lines


def short_lines(one: StageExplanation) -> list[str]:
    """A stage in one line, its limit in another, and its alternatives in a third."""
    lines = [_heading(one), _kernels(one), _bound(one.facts) if one.facts else "", _otherwise(one)]
    return [lines[0], *(f"  {line}" for line in lines[1:] if line)]


def _kernels(one: StageExplanation) -> str:
    """The kernels that the stage names; empty where all run as fastest alone."""
    named = [f"{unit.replace(f'{one.block}.', '')} by {kernel}" for unit, kernel in one.stage.variants.items()]
    return f"kernels chosen for their company: {', '.join(named)}" if named else ""


def slowest_lines(found: Explanation, all_by: str = "") -> Iterator[str]:
    """A few lines per stage, the slowest first: for few stages, where the words ``all_by`` say how to see all."""
    ordered = found.by_importance
    shown = ordered[:_FEW] if all_by else ordered
    for one in shown:
        yield from ("", *short_lines(one))
    if len(shown) < len(ordered):
        rest = sum(one.share for one in ordered[len(shown) :])
        yield f"\n{len(ordered) - len(shown)} more stages take {rest:.1%} ({all_by})"


def in_short(found: Explanation, steps: Sequence[ExplainedStep], whole: bool) -> Iterator[str]:
    """The substitutions that made the network, and the slowest stages, or all (``whole``)."""
    if steps:
        yield from ("", *rewriting_lines(steps, whole, found.schedule.latency_us))
    yield from slowest_lines(found, "" if whole else "--all shows them; --stage N shows more of one")


def in_full(found: Explanation) -> Iterator[str | Table]:
    """Every stage with its choices and kernels."""
    for one in found.stages:
        yield from ("", *long_lines(one))
        if one.facts is not None and one.facts.kernels:
            yield kernels_table(one)
        if one.next_best or one.own or one.beside:
            yield choices_table(one)


def long_lines(one: StageExplanation) -> list[str]:
    """All that is known of a stage, apart from tables."""
    lines = [_heading(one), f"  {stage_words(one.stage, one.block)}"]
    lines += [f"  {said}"] if (said := _kernels(one)) else []
    facts = one.facts
    if facts is not None and facts.bound is None:
        lines.append(f"  {_bound(facts)}")
    elif facts is not None:
        limits_us = {named_limit(limit, facts): us for limit, us in facts.limits_us.items()}
        launching = f"; launching all kernels takes the host {facts.host_us:.1f} us" if facts.host_us else ""
        lines.append(f"  time: {divided(limits_us, facts.duration_us)}")
        lines.append(f"  the longest group takes {facts.chain_us:.1f} us alone{launching}")
        lines.append(f"  {_filled(facts)}")
    if said := _otherwise(one):
        lines.append(f"  {said}")
    return lines


def kernels_table(one: StageExplanation) -> Table:
    """Kernels of a stage: when each runs, and what limits it alone."""
    assert one.facts is not None, "only the simulator reports kernels"
    rows: list[Mapping[str, Cell]] = [
        {
            "stream": kernel.stream,
            "unit": kernel.unit.replace(f"{one.block}.", ""),
            "kernel": kernel.name,
            "start_us": kernel.start_us,
            "takes_us": kernel.end_us - kernel.start_us,
            "alone_us": kernel.alone_us,
            "blocks": kernel.blocks,
            "waves": kernel.waves,
            "occupancy_percent": 100 * kernel.occupancy,
            "mostly": named_limit(max(kernel.limits_us, key=lambda limit: kernel.limits_us[limit]), one.facts),
        }
        for kernel in one.facts.kernels
    ]
    return described_table(__package__, "kernels", "", rows)


def choices_table(one: StageExplanation) -> Table:
    """Alternatives to the stage, the cheapest first."""
    choices = [choice for choice in (one.next_best, one.own, one.beside) if choice is not None]
    rows: list[Mapping[str, Cell]] = [
        {
            "otherwise": choice.way,
            "schedule_us": choice.more_us,
            "tie": None if choice.tie is None else "yes" if choice.tie else "",
            "instead": number_words(choice.instead),
            "stages": "\n".join(stage_words(stage, one.block) for stage in choice.stages),
        }
        for choice in sorted(choices, key=lambda choice: choice.more_us)
    ]
    return described_table(__package__, "choices", "", rows)


def divided(parts_us: Mapping[str, float], total_us: float) -> str:
    """Parts of a time, the largest first; small ones are summed."""
    ordered = sorted(parts_us.items(), key=lambda item: -item[1])
    large = [(name, us) for name, us in ordered if us >= 0.02 * total_us]
    rest_us = sum(us for name, us in ordered if us < 0.02 * total_us)
    said = [f"{name} {us / total_us:.0%}" for name, us in large]
    return ", ".join([*said, f"other {rest_us / total_us:.0%}"] if rest_us > 0.005 * total_us else said)


def _heading(one: StageExplanation) -> str:
    stage, count = one.stage, len(one.stage.units)
    if len(stage.groups) == 1 or stage.strategy is Strategy.MERGE:
        kind = _kind_words(stage) if count > 1 else stage.units[0]
    else:
        kind = f"{len(stage.groups)} concurrent groups of {count} units"
        if one.facts is not None and one.facts.sms:
            kind += f" on {', '.join(map(str, one.facts.sms[:-1]))} and {one.facts.sms[-1]} {one.facts.multiprocessors}"
    place = "" if kind == one.block else f" ({one.block})"
    line = f"stage {one.number}{place}: {kind}, {one.cost_us:.1f} us, {one.share:.1%}"
    if stage.boundary_us:
        line += f" ({stage.boundary_us:.1f} us of that is synchronisation)"
    if one.saves_us is not None and abs(one.saves_us) >= 0.05:
        line += f"; {'saves' if one.saves_us > 0 else 'loses'} {abs(one.saves_us):.1f} us over sequential"
    return line


def _bound(facts: StageFacts) -> str:
    if facts.bound is None:
        return "no kernels: views only"
    large = [
        (str(limit), us / facts.duration_us)
        for limit, us in sorted(facts.limits_us.items(), key=lambda item: -item[1])
        if us >= _SMALL * facts.duration_us
    ]
    said = ", ".join(f"{named_limit(_WORDS.get(name, name), facts)} {part:.0%}" for name, part in large[:3])
    return f"limited by: {said}; {_filled(facts)}"


def named_limit(words: str, facts: StageFacts | None) -> str:
    """Words on a limit, with the name that the multiprocessors of the device have."""
    return words if facts is None else words.replace("SMs", facts.multiprocessors)


def _filled(facts: StageFacts) -> str:
    peaks = f"{facts.arithmetic:.0%} of peak arithmetic, {facts.dram:.0%} of peak DRAM bandwidth"
    return f"occupancy {facts.occupancy:.0%}, {peaks}"


def _otherwise(one: StageExplanation) -> str:
    said: list[str] = []
    if one.own is not None:
        said.append(f"best alternative for its units, {_as(one.own)}: {_more(one.own)}")
    if one.next_best is not None and (one.own is None or one.next_best.more_us < one.own.more_us - 0.05):
        said.append(f"second best for the block, {_as(one.next_best)}: {_more(one.next_best)}")
    if one.beside is not None and one.beside.more_us >= 0.05:
        said.append(f"concurrent with other units: {_more(one.beside)}")
    if not said and one.exact:
        return "there is no alternative"
    return "; ".join(said)


def _as(choice: Choice) -> str:
    """Stages in words, equal ones in a row together: ``as 2 stages of 1 unit, then concurrent groups of 1 and 3``."""
    runs = [(kind, len(list(run))) for kind, run in groupby(map(_kind_words, choice.stages))]
    kinds = [kind if count == 1 else f"{count} stages of {kind}" for kind, count in runs]
    for_which = f"stages {number_words(choice.instead)} as " if len(choice.instead) > 1 else "as "
    more = sum(count for _, count in runs[_MOST_KINDS:])
    return for_which + ", then ".join(kinds[:_MOST_KINDS]) + (f", and {counted(more, 'more stage')}" if more else "")


def _kind_words(stage: Stage) -> str:
    count, sizes = len(stage.units), [str(size) for size in sorted(map(len, stage.groups))]
    if stage.strategy is Strategy.MERGE:
        return f"{count} merged convolutions"
    if len(sizes) == 1:
        return "1 unit" if count == 1 else f"{count} units in order"
    if len(sizes) == count:
        return f"{count} concurrent units"
    return f"concurrent groups of {', '.join(sizes[:-1])} and {sizes[-1]} units"


def _more(choice: Choice) -> str:
    if choice.more_us == 0:
        return "no difference"
    noise = {None: "", True: " (within the noise)", False: ""}[choice.tie]
    return f"{choice.more_us:+.1f} us{noise}"


#: This many steps are shown with their changes unless all are asked for.
_FEW_STEPS = 3


def rewriting_lines(steps: Sequence[ExplainedStep], whole: bool, latency_us: float | None = None) -> Iterator[str]:
    """A line for each change: its place, its steps and their saving together. If asked for (``whole``), or if steps are
    few, a line for each step, with the ops before and after it. Steps that do not end at ``latency_us`` were found
    beside other choices, of joins for instance, which their prices leave out.
    """
    in_full = whole or len(steps) <= _FEW_STEPS
    changes: dict[int, list[ExplainedStep]] = {}
    for step in steps:
        changes.setdefault(step.change, []).append(step)
    places = "" if in_full else f" in {counted(len(changes), 'place')} (--all shows each)"
    yield f"the network was {rewritten_by(len(steps))}{places}"
    last_us = steps[-1].after_us
    if last_us is not None and latency_us is not None and not isclose(last_us, latency_us, rel_tol=1e-3):
        yield f"priced without the schedule's other choices, which turn {last_us:.1f} into {latency_us:.1f} us"
    for step in steps if in_full else ():
        yield f"step {step.number}: {step.rule}{_step_worth(step)}"
        for sign, part in (("-", step.before), ("+", step.after)):
            yield from (f"  {sign} {line}" for line in part.lines)
    for own in () if in_full else changes.values():
        rules = ", ".join(step.rule for step in own)
        saved = [step.saves_us for step in own if step.saves_us is not None]
        yield f"at {own[0].before.nodes[0].name}: {rules}{_worth(fsum(saved)) if saved else ''}"


def _step_worth(step: ExplainedStep) -> str:
    if step.before_us is None or step.after_us is None or step.saves_us is None:
        return ""
    return f": {step.before_us:.1f} -> {step.after_us:.1f} us,{_worth(step.saves_us)[1:]}"


def _worth(saves_us: float) -> str:
    return f": {'saves' if saves_us >= 0 else 'costs'} {abs(saves_us):.1f} us"
