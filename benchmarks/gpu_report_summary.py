"""What ``gpu_report.py`` prints at its end, from what is in the folder of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpu_report_plan import PLAIN_DTYPE
from gpu_report_records import REPORT, read_records

#: Records that are printed as they are.
PRINTED = ("convolution", "cost", "tests", "prediction", "profile", "counts", "skipped")
#: Said beside times of calls that the host issues one by one.
PAPER = "the host issues each call through Python's wrappers (CuPy, cuDNN's front end): an engine in C++ takes less"


def summary(out: Path) -> list[str]:
    """Every measured run in a line, then costs, tests, profiles, counts and predictions."""
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
    records = read_records(out / REPORT)
    if any(engine == "paper" for _, _, engine, _, _ in runs):
        lines.append(f"paper: {PAPER}{_host_costs(records)}")
    for row in records:
        if row["record"] in PRINTED:
            lines.append(json.dumps({key: value for key, value in row.items() if key not in ("runs", "sms")}))
    return lines


def _line(model: str, engine: str, backend: str, name: str, rest: str) -> str:
    return f"{model:<14} {engine or '-':<6} {backend:<16} {name:<32} {rest}".rstrip()


def _host_costs(records: list[dict[str, Any]]) -> str:
    """What the wrappers take here, where it was measured."""
    costs = {row["of"]: row["us"] for row in records if row["record"] == "cost" and "us" in row}
    known = {"a launch": "host: kernel launch", "a library call": "host: library call"}
    said = [f"{words} {costs[of]:.1f} us" for words, of in known.items() if of in costs]
    return f" (here {', '.join(said)})" if said else ""
