"""Concurrent kernels and parts of devices, simulated beside their measurements, as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from rich.console import RenderableType

from evidence.validation.concurrency import ALL_PAIRS, MODELS, RIGHT, ConcurrencyEvaluation, PairErrors
from evidence.validation.sm_shares import ShareEvaluation
from iossim.base.tables import Cell
from iossim.calibration.accuracy_report import percent, titled

#: This many microbenchmarks of a mechanism beyond the bar are named.
_NAMED = 5
_MODEL_WORDS = {
    "none": "no interference",
    "sum": "the sum",
    "in_sample": "in-sample",
    "family": "family left out",
    "set": "set left out",
    "device": "device left out",
}


def concurrency_tables(found: ConcurrencyEvaluation) -> Iterator[RenderableType]:
    """Each table with its title, and lines that say what its figures cover."""
    together = found.all_pairs
    sets = [*found.pairs, *([together] if together else [])]
    yield from titled(
        __package__,
        "pairs",
        "kernels side by side: errors of slowdowns and of makespans, %",
        list(chain.from_iterable(map(_pair_rows, sets))),
        "the sum: an equal part of the device for each; left out: by a fit that saw no kernel of its kinds, not "
        "the set",
        *chain.from_iterable(map(_pair_lines, sets)),
    )
    rows: list[dict[str, Cell]] = []
    beyond = []
    for (device, mechanism), own in found.by_mechanism().items():
        worst = max(own, key=lambda one: abs(one.error))
        wrong = [one.title for one in own if not one.is_right]
        rows.append(
            {
                "mechanism": f"{mechanism}, {device}",
                "right": len(own) - len(wrong),
                "of": len(own),
                "worst": 100 * worst.error,
                "measured": worst.measured,
                "simulated": worst.simulated,
            }
        )
        if wrong:
            more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
            beyond.append(f"beyond, {mechanism}, {device}: {', '.join(wrong[:_NAMED])}{more}")
    title = f"microbenchmarks: ratios together over alone that are within {RIGHT:.0%}"
    yield from titled(__package__, "mechanisms", title, rows, "worst: simulated over measured, less 1", *beyond)


def _pair_rows(pair: PairErrors) -> Iterator[dict[str, Cell]]:
    yield {"model": f"{pair.data_set} ({pair.pairs})"}
    for model in MODELS:
        if pair.fitted or pair.data_set == ALL_PAIRS or model not in ("family", "set", "device"):
            slowdowns, makespans = pair.slowdowns[model].percents(), pair.makespans[model].percents()
            whole = {f"whole_{name}": value for name, value in makespans.items()}
            yield {"model": f"  {_MODEL_WORDS[model]}", **slowdowns, **whole}


def _pair_lines(pair: PairErrors) -> Iterator[str]:
    if pair.fitted:
        yield f"{pair.data_set}: {pair.fitted} {pair.value:g}, fitted; without this data set nothing determines it"
    if pair.within is not None:
        share = f"{100 * pair.within:.0f}% of slowdowns"
        yield f"{pair.data_set}: {share} within their 90% interval, {pair.width:.2f}x wide"


def sm_share_tables(found: ShareEvaluation) -> Iterator[RenderableType]:
    """Each table with its title, and a line that says what its figures cover."""
    rows: list[dict[str, Cell]] = [
        {
            "kernel": one.kernel,
            "rows": one.rows,
            "sm": one.sm_part,
            "in_sample": 100 * one.in_sample,
            "left_out": 100 * one.left_out,
        }
        for one in found.curves
    ]
    yield from titled(
        __package__,
        "curves",
        "kernels by the number of SMs: mean errors, %",
        rows,
        "SM-bound: the part of the time, fitted; left out: every other count, by a fit to the rest",
    )
    rows = [
        {
            "device": one.device,
            "rows": one.rows,
            "reach": one.reach,
            "error": 100 * one.error,
            "own": one.profile_reach,
            "own_error": 100 * one.profile_error,
        }
        for one in found.reaches
    ]
    yield from titled(
        __package__,
        "reaches",
        "bandwidth by the number of SMs: how many times its even share one draws, and mean errors, %",
        rows,
        "of the bandwidth that the most SMs reached, which may be below the datasheet's",
    )
    rows = [
        {
            "network": one.network,
            "rows": one.rows,
            "copies_us": one.copy_us,
            "price": 100 * one.price_alone,
            "in_sample": 100 * one.in_sample,
            "left_out": 100 * one.left_out,
            "slowdown": percent(one.slowdown),
        }
        for one in found.networks
    ]
    yield from titled(
        __package__,
        "network_shares",
        "networks by share of the SMs: mean errors, %",
        rows,
        "copies are fitted to each network; left out: each share by a fit to the others; slowdown: over the "
        "largest share",
    )
    if found.pairs is not None:
        pairs = found.pairs
        models = {
            "no interference": pairs.no_interference,
            "model, in-sample": pairs.in_sample,
            "model, left out": pairs.left_out,
        }
        yield from titled(
            __package__,
            "network_pairs",
            f"networks side by side on shares: errors of {pairs.rows} slowdowns, %",
            [{"by": by, **each.percents()} for by, each in models.items()],
            f"model: {pairs.delay_us:.1f} us a kernel, and {pairs.l2_part:.2f} of the other's L2 "
            "throughput; left out: fitted without any pair of the network",
        )
