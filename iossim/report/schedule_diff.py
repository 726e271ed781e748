"""Two schedules beside each other as text: totals, what changed, and the changed stages block by block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.table import Table

from iossim.base.tables import Cell, keyed_table
from iossim.report.schedule_words import stage_words
from iossim.schedule.schedule import Schedule, Stage
from iossim.tasks.schedule_diff import Change, Passage, ScheduleDiff


def diff_lines(found: ScheduleDiff) -> list[str]:
    """The difference in a few lines."""
    first, second = found.first, found.second
    lines = [f"A: {_described(first)}", f"B: {_described(second)}"]
    if found.same_prices:
        more_us = second.latency_us - first.latency_us
        part = more_us / first.latency_us if first.latency_us else 0.0
        noise = {None: "", True: ": within the noise", False: ": more than the noise"}[found.tie]
        lines.append(f"B against A: {more_us:+.1f} us ({part:+.1%}){noise}")
    elif found.cross is not None:
        lines.append(_crossed("A", first, found.cross.second_at_first_us, found.cross.tie_at_first))
        lines.append(_crossed("B", second, found.cross.first_at_second_us, found.cross.tie_at_second))
    lines += [f"Unknown: {reason}" for reason in found.unknown]
    changed = found.changed
    same = sum(passage.change is Change.SAME for passage in found.passages)
    if not changed:
        return [*lines, f"All {same} stages are the same"]
    counts = Counter(str(passage.change) for passage in changed)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    lines.append(f"Identical stages: {same}. Runs of stages that differ: {len(changed)} ({kinds})")
    own, other = found.decided_otherwise
    lines.append(f"Stages that differ: {own} of {len(first.stages)} in A, {other} of {len(second.stages)} in B")
    if found.moved:
        lines.append(
            f"Units that run with other units: {len(found.moved)} ({', '.join(found.moved[:8])}{_more(found.moved, 8)})"
        )
    return lines


def diff_table(found: ScheduleDiff, all_passages: bool = False) -> Table:
    """The passages that differ, or all of them, by block: stages of both schedules and what they take."""
    rows: list[Mapping[str, Cell]] = []
    before = ""
    own, other = found.first.stages, found.second.stages
    for passage in found.passages:
        if passage.change is Change.SAME and not all_passages:
            continue
        rows.append(
            {
                "block": "" if passage.block == before else passage.block,
                "change": str(passage.change),
                "a_us": passage.first_us,
                "b_us": passage.second_us,
                "first": _stages(own, passage.first, passage.block),
                "second": "as A" if passage.change is Change.SAME else _stages(other, passage.second, passage.block),
            }
        )
        before = passage.block
    rows += _totals(found.passages, all_passages)
    return keyed_table(
        "",
        rows,
        titles={"a_us": "A", "b_us": "B", "first": "stages of A (| concurrent)", "second": "stages of B"},
        wraps=("first", "second"),
        shortens=("block",),
        digits=1,
    )


def _totals(passages: Sequence[Passage], all_passages: bool) -> list[Mapping[str, Cell]]:
    same = [passage for passage in passages if passage.change is Change.SAME]
    rows: list[Mapping[str, Cell]] = []
    if same and not all_passages:
        rows.append(_total("identical", same))
    return [*rows, _total("all", passages)]


def _total(name: str, passages: Sequence[Passage]) -> Mapping[str, Cell]:
    return {
        "block": name,
        "change": "",
        "a_us": sum(passage.first_us for passage in passages),
        "b_us": sum(passage.second_us for passage in passages),
        "first": f"stages: {sum(len(passage.first) for passage in passages)}",
        "second": f"stages: {sum(len(passage.second) for passage in passages)}",
    }


def _described(schedule: Schedule) -> str:
    return (
        f"{schedule.network}, {schedule.scheduler}, on {schedule.device or schedule.cost_model.get('name', '')}, batch "
        f"{schedule.source.batch}, {schedule.precision}, {schedule.engine or 'no'} engine: {schedule.latency_us / 1e3:.3f} ms "
        f"in {len(schedule.stages)} stages, at most {_groups(schedule.streams)}"
    )


def _groups(count: int) -> str:
    return "1 group" if count == 1 else f"{count} concurrent groups"


def _crossed(name: str, at: Schedule, other_us: float, tie: bool | None) -> str:
    other = "B" if name == "A" else "A"
    part = other_us / at.latency_us - 1 if at.latency_us else 0.0
    noise = {None: "", True: ", within the noise", False: ", more than the noise"}[tie]
    return (
        f"On the setup of {name} ({at.device}, batch {at.source.batch}, {at.engine} engine): {name} {at.latency_us / 1e3:.3f} ms, "
        f"{other} {other_us / 1e3:.3f} ms ({part:+.1%}{noise})"
    )


def _stages(stages: Sequence[Stage], numbers: Sequence[int], block: str) -> str:
    return "\n".join(f"{number}: {stage_words(stages[number], block)}" for number in numbers)


def _more(names: Sequence[str], shown: int) -> str:
    return f" and {len(names) - shown} more" if len(names) > shown else ""
