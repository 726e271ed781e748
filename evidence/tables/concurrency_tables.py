"""Concurrent kernels and parts of devices, simulated beside their measurements, as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.table import Table

from evidence.validation.concurrency import ALL_PAIRS, MODELS, RIGHT, ConcurrencyEvaluation, PairErrors, RatioErrors
from evidence.validation.sm_shares import NetworkPairErrors, ShareEvaluation
from iossim.base.tables import Cell, Column, records_table

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


def concurrency_tables(found: ConcurrencyEvaluation) -> Iterator[tuple[str, Table, tuple[str, ...]]]:
    """Each table with its title, and lines that say what its figures cover."""
    if found.pairs:
        together = found.all_pairs
        sets = [*found.pairs, *([together] if together else [])]
        columns = [
            Column("model", shortens=True),
            Column("median", digits=1),
            Column("mean", digits=1),
            Column("p90", "90th\nperc.", digits=1),
            Column("whole_median", "makespan\nmedian", digits=1),
            Column("whole_mean", "\nmean", digits=1),
            Column("whole_p90", "90th\nperc.", digits=1),
        ]
        yield (
            "kernels side by side: errors of slowdowns and of makespans, %",
            records_table("", [row for pair in sets for row in _pair_rows(pair)], columns),
            (
                "the sum: an equal part of the device for each; left out: by a fit that saw no kernel of its kinds, "
                "not the set",
                *(line for pair in sets for line in _pair_lines(pair)),
            ),
        )
    if found.microbenchmarks:
        yield (
            f"microbenchmarks: ratios together over alone that are within {RIGHT:.0%}",
            _mechanisms(found),
            ("worst: simulated over measured, less 1", *_wrong(found)),
        )
    if found.placements:
        rows: list[dict[str, Cell]] = [
            {
                "kernel": f"{one.kernel} on {one.device}",
                "blocks": one.blocks,
                "foretold": 100 * one.foretold,
                "in_turn": 100 * one.in_turn,
                "by_number": 100 * one.by_number,
                "chance": 100 * one.chance,
            }
            for one in found.placements
        ]
        columns = [
            Column("kernel", shortens=True),
            Column("blocks"),
            *(
                Column(name, title, digits=1)
                for name, title in (
                    ("foretold", "simulated"),
                    ("in_turn", "clusters\nin turn"),
                    ("by_number", "by\nnumber"),
                    ("chance", "chance"),
                )
            ),
        ]
        yield (
            "blocks whose SM is predicted correctly, %",
            records_table("", rows, columns),
            ("by number: SM after SM",),
        )


def _pair_rows(pair: PairErrors) -> Iterator[dict[str, Cell]]:
    yield {"model": f"{pair.data_set} ({pair.pairs})"}
    for model in MODELS:
        if pair.fitted or pair.data_set == ALL_PAIRS or model not in ("family", "set", "device"):
            yield {
                "model": f"  {_MODEL_WORDS[model]}",
                **_cells(pair.slowdowns[model]),
                **_cells(pair.makespans[model], "whole_"),
            }


def _pair_lines(pair: PairErrors) -> Iterator[str]:
    if pair.fitted:
        yield f"{pair.data_set}: {pair.fitted} {pair.value:g}, fitted; without this data set nothing determines it"
    if pair.within is not None:
        share = f"{100 * pair.within:.0f}% of slowdowns"
        yield f"{pair.data_set}: {share} within their 90% interval, {pair.width:.2f}x wide"


def _cells(errors: RatioErrors, prefix: str = "") -> Mapping[str, Cell]:
    return {
        f"{prefix}median": 100 * errors.median,
        f"{prefix}mean": 100 * errors.mean,
        f"{prefix}p90": 100 * errors.percentile_90,
    }


def _mechanisms(found: ConcurrencyEvaluation) -> Table:
    rows: list[dict[str, Cell]] = []
    for (device, mechanism), own in found.by_mechanism().items():
        worst = max(own, key=lambda one: abs(one.error))
        rows.append(
            {
                "mechanism": f"{mechanism}, {device}",
                "right": sum(one.is_right for one in own),
                "of": len(own),
                "worst": 100 * worst.error,
                "measured": worst.measured,
                "simulated": worst.simulated,
            }
        )
    columns = [
        Column("mechanism", shortens=True),
        Column("right"),
        Column("of"),
        Column("worst", "worst\n%", digits=1),
        Column("measured", "measured"),
        Column("simulated", "simulated"),
    ]
    return records_table("", rows, columns)


def _wrong(found: ConcurrencyEvaluation) -> Iterator[str]:
    for (device, mechanism), own in found.by_mechanism().items():
        wrong = [one.title for one in own if not one.is_right]
        if wrong:
            more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
            yield f"beyond, {mechanism}, {device}: {', '.join(wrong[:_NAMED])}{more}"


def sm_share_tables(found: ShareEvaluation) -> Iterator[tuple[str, Table, str]]:
    """Each table with its title, and a line that says what its figures cover."""
    if found.curves:
        rows: list[dict[str, Cell]] = [
            {"kernel": one.kernel, "rows": one.rows, "sm": one.sm_part, **_percents(one.in_sample, one.left_out)}
            for one in found.curves
        ]
        columns = [Column("kernel", shortens=True), Column("rows"), Column("sm", "SM-bound"), *_ERRORS]
        yield (
            "kernels by the number of SMs: mean errors, %",
            records_table("", rows, columns),
            "SM-bound: the part of the time, fitted; left out: every other count, by a fit to the rest",
        )
    if found.reaches:
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
        columns = [
            Column("device", shortens=True),
            Column("rows"),
            Column("reach", "fitted\nreach"),
            Column("error", digits=1),
            Column("own", "the\nprofile's"),
            Column("own_error", "error", digits=1),
        ]
        yield (
            "bandwidth by the number of SMs: how many times its even share one draws, and mean errors, %",
            records_table("", rows, columns),
            "of the bandwidth that the most SMs reached, which may be below the datasheet's",
        )
    if found.networks:
        rows = [
            {
                "network": one.network,
                "rows": one.rows,
                "copies_us": one.copy_us,
                "price": 100 * one.price_alone,
                **_percents(one.in_sample, one.left_out),
                "slowdown": None if one.slowdown is None else 100 * one.slowdown,
            }
            for one in found.networks
        ]
        columns = [
            Column("network", shortens=True),
            Column("rows"),
            Column("copies_us", "copies\nan image", digits=0),
            Column("price", "price\nalone", digits=1),
            *_ERRORS,
            Column("slowdown", "slowdown", digits=1),
        ]
        yield (
            "networks by share of the SMs: mean errors, %",
            records_table("", rows, columns),
            "copies are fitted to each network; left out: each share by a fit to the others; slowdown: over the "
            "largest share",
        )
    if found.pairs is not None:
        yield (
            f"networks side by side on shares: errors of {found.pairs.rows} slowdowns, %",
            _pair_table(found.pairs),
            f"model: {found.pairs.delay_us:.1f} us a kernel, and {found.pairs.l2_part:.2f} of the other's L2 "
            "throughput; left out: fitted without any pair of the network",
        )


_ERRORS = (Column("in_sample", "in-sample", digits=1), Column("left_out", "left out", digits=1))


def _percents(in_sample: float, left_out: float) -> dict[str, Cell]:
    return {"in_sample": 100 * in_sample, "left_out": 100 * left_out}


def _pair_table(pairs: NetworkPairErrors) -> Table:
    rows: list[dict[str, Cell]] = [
        {"by": by, "median": 100 * each.median, "mean": 100 * each.mean, "p90": 100 * each.ninetieth}
        for by, each in (
            ("no interference", pairs.no_interference),
            ("model, in-sample", pairs.in_sample),
            ("model, left out", pairs.left_out),
        )
    ]
    columns = [Column("by"), *(Column(name, digits=1) for name in ("median", "mean", "p90"))]
    return records_table("", rows, columns)
