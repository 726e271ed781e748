"""Figures of a study's convolutions alone, one after another, their batches in micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from iossim.base.tables import Column
from iossim.microbatching.convolutions_in_micro_batches import benchmarks
from iossim.microbatching.kernels_under_limits import Benchmarks
from iossim.study.study_kind import Direction, Measure, Metric
from iossim.study.workers import LruCache

if TYPE_CHECKING:
    from iossim.study.evaluate import EvaluationContext

_MIB = 1 << 20
_BENCHMARKS: LruCache[Benchmarks] = LruCache(4)
_FIGURES: LruCache[Mapping[str, object]] = LruCache(2)


def _figures_of(context: EvaluationContext) -> Mapping[str, object]:
    """Figures of a point for a row; raises OptionError if a limit is too small."""
    return _FIGURES.get(context.point.key, lambda: _divided(context))


def _divided(context: EvaluationContext) -> Mapping[str, object]:
    asked = context.point.workspace
    # Points that differ only in their limits share the known kernels.
    unlimited = asked.model_copy(update={"limit": None, "total": None, "label": ""})
    key = replace(context.point, index=0, workspace=unlimited, key="")
    kernels = _BENCHMARKS.get(
        repr(key), lambda: benchmarks(context.network, context.prices, asked.policy, asked.training)
    )
    found = kernels.divided(asked.limit_bytes, asked.total_bytes)
    whole_us = found.undivided_us
    return {
        "convolutions_ms": found.time_us / 1e3,
        "undivided_ms": None if whole_us is None else whole_us / 1e3,
        "micro_batch_gain": found.gain,
        "largest_gain": max((one.gain for one in found.kernels if one.gain is not None), default=None),
        "workspace_mib": found.workspace_bytes / _MIB,
    }


def _metric(name: str, words: str, unit: str, title: str, digits: int = 2, better: Direction = "lowest") -> Metric:
    return Metric(name, words, unit, better, Column(name, title, digits), measure="micro_batches")


MEASURE = Measure(
    # Time, undivided time under the same limits, the gain of all and the largest of one, the size of all workspaces.
    (
        _metric("convolutions_ms", "time of the convolutions", " ms of convolutions", "convolutions"),
        _metric("undivided_ms", "time of the convolutions undivided", " ms of convolutions undivided", "undivided"),
        _metric("micro_batch_gain", "gain by micro-batches", "x", "by micro-batches", better="highest"),
        _metric("largest_gain", "gain of the kernel that gains most", "x", "of one kernel", better="highest"),
        _metric("workspace_mib", "size of the workspaces", " MiB of workspaces", "workspaces, MiB", 1),
    ),
    _figures_of,
)
