"""Final output of ``gpu_report.py``, from the folder of results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from gpu_report_modules import beside_pytorch
from gpu_report_plan import PLAIN_DTYPE
from gpu_report_records import REPORT, read_records

#: Records that are printed unchanged.
PRINTED = ("convolution", "cost", "tests", "prediction", "profile", "counts", "skipped")
#: Note on times of calls that the host issues one by one.
PAPER = "the host issues each call through Python's wrappers (CuPy, cuDNN's front end): an engine in C++ takes less"


def summary(out: Path) -> list[str]:
    """Every measured run in a line, the best of each network, then costs, tests, profiles, counts and predictions."""
    runs: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in read_records(out / "networks.jsonl"):
        if "median_us" in row:  # the newest of equal ones
            model = row["model"] if row["dtype"] == PLAIN_DTYPE else f"{row['model']}@{row['dtype']}"
            runs[model, row["batch"], row["engine"], row["backend"], row["name"]] = row
    lines = (
        [_line("network", "engine", "backend", "run", f"{'ms':>9} {'10-90%':>8} {'warm':>9} {'cold':>9}")]
        if runs
        else []
    )
    for (model, _, engine, backend, name), row in runs.items():
        if not row.get("outputs_right", True):
            lines.append(_line(model, engine, backend, name, "WRONG OUTPUTS"))
            continue
        spread_us = row["p90_us"] - row["p10_us"]
        sums = [f"{row[key] / 1e3:9.3f}" if row.get(key) else 9 * " " for key in ("stages_warm_us", "stages_cold_us")]
        lines.append(
            _line(
                model, engine, backend, name, f"{row['median_us'] / 1e3:9.3f} {spread_us / 1e3:8.3f} {' '.join(sums)}"
            )
        )
    lines += best_beside_pytorch(runs)
    records = read_records(out / REPORT)
    lines += beside_pytorch(records)
    if any(engine == "paper" for _, _, engine, _, _ in runs):
        lines.append(f"paper: {PAPER}{_host_costs(records)}")
    lines += company_lines([row for row in records if row["record"] == "company"])
    for row in records:
        if row["record"] in PRINTED:
            lines.append(json.dumps({key: value for key, value in row.items() if key not in ("runs", "sms")}))
    return lines


def company_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per network with kernels chosen for their company, and one per such stage: measured, then predicted."""
    lines = (
        [f"{'chosen kernels':<28} {'fastest us':>10} {'chosen us':>10} {'times':>6} {'predicted':>9}"] if rows else []
    )
    for row in rows:
        found, hoped = row["measured_us"], row["predicted_us"]
        if len(found) == 2:
            lines.append(
                _gain(row["model"], *(each[name] for each in (found, hoped) for name in ("company-fastest", "company")))
            )
        for stage in row["stages"]:
            names = " | ".join(">".join(group) for group in stage["groups"])
            times = (
                stage[name] for name in ("fastest_us", "company_us", "predicted_fastest_us", "predicted_company_us")
            )
            lines.append(f"{_gain('', *times)}  {names}: {', '.join(stage['variants'].values())}")
    return lines


def _gain(name: str, fastest_us: float, chosen_us: float, predicted_fastest_us: float, predicted_us: float) -> str:
    times = f"{fastest_us / chosen_us:6.2f} {predicted_fastest_us / predicted_us:9.2f}"
    return f"{name:<28} {fastest_us:10.1f} {chosen_us:10.1f} {times}"


def best_beside_pytorch(runs: Mapping[tuple[Any, ...], Mapping[str, Any]]) -> list[str]:
    """One line per network that both ran: the best of iossim over the best of PyTorch; then their geometric mean."""
    best: dict[tuple[str, int], dict[bool, tuple[float, str]]] = {}
    for (model, batch, engine, backend, name), row in runs.items():
        if row.get("outputs_right", True):
            is_pytorch = name.startswith("torch-")
            found = (row["median_us"], name if is_pytorch else f"{backend} {name}, {engine}")
            own = best.setdefault((model, batch), {})
            own[is_pytorch] = min(found, own.get(is_pytorch, found))
    both = {key: (own[False], own[True]) for key, own in best.items() if len(own) == 2}
    if not both:
        return []
    times = [theirs[0] / ours[0] for ours, theirs in both.values()]
    lines = [
        f"{'network':<20} {'batch':>5} {'iossim ms':>9} {'PyTorch ms':>10} {'times':>6}  best of iossim; of PyTorch"
    ]
    for ((model, batch), (ours, theirs)), faster in zip(both.items(), times, strict=True):
        row = f"{model:<20} {batch:>5} {ours[0] / 1e3:9.3f} {theirs[0] / 1e3:10.3f} {faster:6.2f}"
        lines.append(f"{row}  {ours[1]}; {theirs[1]}")
    return [*lines, f"{'geometric mean':<20} {'':>26} {geometric_mean(times):6.2f}"]


def _line(model: str, engine: str, backend: str, name: str, rest: str) -> str:
    return f"{model:<14} {engine or '-':<6} {backend:<16} {name:<32} {rest}".rstrip()


def _host_costs(records: list[dict[str, Any]]) -> str:
    """Overhead of the wrappers, if it was measured."""
    costs = {row["of"]: row["us"] for row in records if row["record"] == "cost" and "us" in row}
    known = {"a launch": "host: kernel launch", "a library call": "host: library call"}
    said = [f"{words} {costs[of]:.1f} us" for words, of in known.items() if of in costs]
    return f" (here {', '.join(said)})" if said else ""
