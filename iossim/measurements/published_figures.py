"""Published latencies and errors, with sources (``published_figures.yaml``), to compare predictions with."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from iossim.base.shipped_yaml import read_shipped

#: The scheduler whose figures fits may use; those of all others are held out.
SEQUENTIAL = "sequential"


def published_latency_us(model: str, device: str, batch: int, scheduler: str) -> float | None:
    """The published latency of a network (fp32, streams with syncs between stages), or None if unknown."""
    for row in published_figures()["networks"]:
        if (row["model"], row["device"], row["batch"]) == (model, device, batch):
            latency_ms = row["latency_ms"].get(scheduler)
            return None if latency_ms is None else 1e3 * float(latency_ms)
    return None


def published_stages_us(device: str) -> dict[str, float]:
    """Published latencies of stages of the sample network at batch 1: unit names joined by commas, a unit per group."""
    for row in published_figures()["sample_stages"]:
        if (row["device"], row["batch"]) == (device, 1):
            return {stage: 1e3 * float(latency_ms) for stage, latency_ms in row["latency_ms"].items()}
    return {}


def fitted_networks(device: str) -> list[dict[str, Any]]:
    """The rows of a device whose :data:`SEQUENTIAL` figures ``iossim calibrate --published`` fits to."""
    return [row for row in published_figures()["networks"] if row["device"] == device and row.get("fitted", True)]


def is_pinned(model: str, scheduler: str) -> bool:
    """Whether a number of the simulator was chosen by hand to match the figure of a network by a scheduler."""
    return any(row["model"] == model and scheduler in row.get("pinned", ()) for row in published_figures()["networks"])


def operator_model(name: str) -> dict[str, Any]:
    """Published results of a model of single operators: mean errors (%) by family, in distribution and out."""
    found: dict[str, Any] = next(row for row in published_figures()["operator_models"] if row["name"] == name)
    return found


def published_dataflow(device: str) -> dict[str, list[float]]:
    """Minimum and maximum saving of Xenos's ``horizontal`` and ``vertical`` steps on a device, in per cent."""
    return next((row for row in published_figures()["dataflow"] if row["device"] == device), {})


@cache
def published_figures() -> dict[str, Any]:
    """The whole file."""
    text = (resources.files("iossim.measurements") / "published_figures.yaml").read_text(encoding="utf-8")
    figures: dict[str, Any] = read_shipped(text)
    return figures
