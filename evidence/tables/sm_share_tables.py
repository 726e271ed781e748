"""Kernels and networks on parts of a device beside their measurements, as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from evidence.validation.sm_shares import NetworkPairErrors, ShareEvaluation
from iossim.base.tables import Cell, Column, records_table


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
