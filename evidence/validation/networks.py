"""Whole networks, the stages of the sample network and its active warps, against published figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import fmean
from typing import Any

import numpy as np

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.backends.simulator.events import run_schedule
from iossim.base.errors import Progress, ignore
from iossim.calibration.host_fit import SAMPLE
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.prediction.published import SEQUENTIAL, is_pinned, published_figures, without_network
from iossim.prediction.schedule_interval import ScheduleErrors
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem
from iossim.search.scheduler import schedule, scheduler_names

#: Two published latencies that differ by more than this are in a known order; repeats differ by less, or nearly.
NOISE = 0.03


@dataclass(frozen=True, slots=True)
class Foretold:
    """A latency by a fit that saw no figure of the network, and its interval, in us."""

    predicted_us: float
    low_us: float
    high_us: float


@dataclass(frozen=True, slots=True)
class NetworkLatency:
    """A schedule that the simulator found, and the published latency of that scheduler, in us.

    ``low_us`` to ``high_us`` is the interval of the prediction. Speed-ups are over the sequential schedule, of
    predictions and of published figures; None where that is not published. In-sample are sequential figures that took
    part in the fit, and those by which a number of the simulator was set. If a figure of the network took part,
    ``left_out`` is the result of a fit without the network, with its own search.
    """

    model: str
    batch: int
    scheduler: str
    predicted_us: float
    published_us: float
    low_us: float
    high_us: float
    speedup: float | None = None
    published_speedup: float | None = None
    left_out: Foretold | None = None

    @property
    def is_in_sample(self) -> bool:
        fitted = self.left_out is not None and self.scheduler == SEQUENTIAL
        return fitted or is_pinned(self.model, self.scheduler)

    @property
    def error(self) -> float:
        return self.predicted_us / self.published_us - 1.0

    @property
    def foretold(self) -> Foretold:
        """Out-of-sample prediction of the network."""
        return self.left_out or Foretold(self.predicted_us, self.low_us, self.high_us)

    @property
    def foretold_error(self) -> float:
        return self.foretold.predicted_us / self.published_us - 1.0

    @property
    def is_covered(self) -> bool:
        """True where the published latency is in the interval of the out-of-sample prediction."""
        return self.foretold.low_us <= self.published_us <= self.foretold.high_us


@dataclass(frozen=True, slots=True)
class SchedulerOrder:
    """Two schedulers of which the first is published to be faster by more than the noise."""

    model: str
    batch: int
    faster: str
    slower: str
    #: Slower over faster, less 1; ``left_out`` by a fit that saw no figure of the network.
    published: float
    predicted: float
    left_out: float

    @property
    def is_right(self) -> bool:
        return self.predicted > 0.0

    @property
    def is_foretold(self) -> bool:
        return self.left_out > 0.0


@dataclass(frozen=True, slots=True)
class StageLatency:
    """A stage of the sample network, groups separated by commas, in us."""

    batch: int
    stage: str
    predicted_us: float
    published_us: float
    #: Latency by a fit without the sample network; None if it took no part.
    left_out_us: float | None = None

    @property
    def error(self) -> float:
        return self.predicted_us / self.published_us - 1.0

    @property
    def left_out_error(self) -> float | None:
        return None if self.left_out_us is None else self.left_out_us / self.published_us - 1.0


@dataclass(frozen=True, slots=True)
class ActiveWarps:
    """Active warps of a schedule of IOS over those of the sequential one, averaged over time, block by block."""

    model: str
    batch: int
    predicted: float
    published: float


@dataclass(frozen=True)
class NetworkEvaluation:
    """All published figures of a device, beside predictions."""

    device: str
    latencies: tuple[NetworkLatency, ...] = ()
    orders: tuple[SchedulerOrder, ...] = ()
    stages: tuple[StageLatency, ...] = ()
    active_warps: tuple[ActiveWarps, ...] = ()

    @property
    def in_sample(self) -> tuple[NetworkLatency, ...]:
        """Figures that the profile was fitted to."""
        return tuple(each for each in self.latencies if each.is_in_sample)

    @property
    def errors(self) -> tuple[float, ...]:
        """Relative errors of the figures that the profile was fitted to."""
        return tuple(each.error for each in self.in_sample)

    @property
    def unseen(self) -> tuple[NetworkLatency, ...]:
        """Figures that took part in no fit: those of schedules with concurrency or merges, and those of networks that
        no fit saw. Others of the same network may have taken part.
        """
        return tuple(each for each in self.latencies if not each.is_in_sample)

    @property
    def unseen_errors(self) -> tuple[float, ...]:
        """Relative errors of :attr:`unseen`, by the unchanged profile."""
        return tuple(each.error for each in self.unseen)

    @property
    def foretold_errors(self) -> tuple[float, ...]:
        """Relative errors of all figures, each by a fit that saw none of its network."""
        return tuple(each.foretold_error for each in self.latencies)

    @property
    def coverage(self) -> float | None:
        """Fraction of the published latencies within the intervals of the out-of-sample predictions."""
        return fmean(each.is_covered for each in self.latencies) if self.latencies else None

    def to_json(self) -> dict[str, Any]:
        by_scheduler = {
            name: mean_size([each.error for each in self.unseen if each.scheduler == name])
            for name in dict.fromkeys(each.scheduler for each in self.unseen)
        }
        return {
            "device": self.device,
            "in_sample": _summary(self.errors),
            "unseen": {
                **_summary(self.unseen_errors),
                "mean_error_by_scheduler": by_scheduler,
                "orders_right": sum(order.is_right for order in self.orders),
            },
            "left_out": {
                **_summary(self.foretold_errors),
                "interval_coverage": self.coverage,
                "orders_right": sum(order.is_foretold for order in self.orders),
            },
            "orders": len(self.orders),
            "networks": [
                asdict(each)
                | {"error": each.error, "in_sample": each.is_in_sample}
                | {"left_out": asdict(each.foretold) | {"error": each.foretold_error}}
                for each in self.latencies
            ],
            "wrong_orders": [asdict(order) for order in self.orders if not (order.is_right and order.is_foretold)],
            "sample_stages": [
                {
                    "batch": each.batch,
                    "stage": each.stage,
                    "predicted_us": each.predicted_us,
                    "published_us": each.published_us,
                    "error": each.error,
                    "left_out_error": each.left_out_error,
                }
                for each in self.stages
            ],
            "active_warps": [asdict(each) for each in self.active_warps],
        }


def _summary(errors: Sequence[float]) -> dict[str, Any]:
    return {"figures": len(errors), "mean_error": mean_size(errors), "worst_error": largest(errors)}


def mean_size(errors: Sequence[float]) -> float | None:
    """Mean absolute error; None without errors."""
    return fmean(map(abs, errors)) if errors else None


def largest(errors: Sequence[float]) -> float | None:
    """Signed error of the largest size; None without errors."""
    return max(errors, key=abs, default=None)


def published_devices() -> tuple[str, ...]:
    """Devices with published figures, sorted."""
    figures = published_figures()
    rows = [*figures["networks"], *figures["sample_stages"], *figures["active_warps"]]
    return tuple(sorted({row["device"] for row in rows}))


def evaluate_networks(
    profile: DeviceProfile, figures: Mapping[str, Any] | None = None, progress: Progress = ignore
) -> NetworkEvaluation:
    """Schedule every network that ``figures`` have for the device, by every scheduler that they have.

    The search itself runs on the simulator (paper engine, fp32), so that a strategy's gain is the simulator's.
    ``figures`` are by default those of ``published_figures.yaml``, or have the same form. ``progress`` is called with
    finished and total networks.
    """
    known: Mapping[str, Any] = published_figures() if figures is None else figures
    simulator = SimulatorCostModel(profile, Precision.FP32)
    rows, stages, warps = (
        [row for row in known.get(name, ()) if row["device"] == profile.name]
        for name in ("networks", "sample_stages", "active_warps")
    )
    latencies: list[NetworkLatency] = []
    orders: list[SchedulerOrder] = []
    for done, row in enumerate(rows):
        found = list(_latencies(row, simulator))
        latencies += found
        orders += _orders(found)
        progress(done + 1, len(rows))
    return NetworkEvaluation(
        profile.name,
        tuple(latencies),
        tuple(orders),
        tuple(_stages(stages, simulator)),
        tuple(_active_warps(warps, simulator)),
    )


def _latencies(row: Mapping[str, Any], simulator: SimulatorCostModel) -> Iterator[NetworkLatency]:
    network = load(row["model"], batch=row["batch"])
    published_us = {
        name: round(1e3 * float(row["latency_ms"][name]), 3) for name in scheduler_names() if name in row["latency_ms"]
    }
    found = _predicted(network, simulator, tuple(published_us))
    # A figure that no fit may see was seen by none.
    other = without_network(simulator.profile, row["model"]) if row.get("fitted", True) else None
    unseen = _predicted(network, SimulatorCostModel(other, Precision.FP32), tuple(published_us)) if other else {}
    base = found.get(SEQUENTIAL)
    for name, published in published_us.items():
        own = found[name]
        yield NetworkLatency(
            row["model"],
            row["batch"],
            name,
            own.predicted_us,
            published,
            own.low_us,
            own.high_us,
            None if base is None else base.predicted_us / own.predicted_us,
            None if base is None else published_us[SEQUENTIAL] / published,
            unseen.get(name),
        )


def _predicted(network: Network, simulator: SimulatorCostModel, names: Sequence[str]) -> dict[str, Foretold]:
    """Latency of each scheduler's schedule, and its interval."""
    errors = ScheduleErrors(network, simulator.profile, simulator)
    predicted = {}
    for name in names:
        found = schedule(network, simulator, name)
        interval = errors.interval(found)
        predicted[name] = Foretold(found.latency_us, interval.low_us, interval.high_us)
    return predicted


def _orders(found: Sequence[NetworkLatency]) -> Iterator[SchedulerOrder]:
    """Every pair of one network's schedulers whose published latencies differ by more than the noise."""
    for pair in combinations(found, 2):
        faster, slower = sorted(pair, key=lambda each: each.published_us)
        published = slower.published_us / faster.published_us - 1.0
        if published > NOISE:
            predicted = slower.predicted_us / faster.predicted_us - 1.0
            foretold = slower.foretold.predicted_us / faster.foretold.predicted_us - 1.0
            yield SchedulerOrder(
                faster.model, faster.batch, faster.scheduler, slower.scheduler, published, predicted, foretold
            )


def _stages(rows: Sequence[Mapping[str, Any]], simulator: SimulatorCostModel) -> Iterator[StageLatency]:
    for row in rows:
        network = load(SAMPLE, batch=row["batch"])
        problem = ScheduleProblem.of_block(network, network.blocks[0])
        position = {name: index for index, name in enumerate(problem.unit_names)}
        masks = [sum(1 << position[unit] for unit in stage.split(",")) for stage in row["latency_ms"]]
        batch = StageBatch.concurrent(problem, np.array(masks, dtype=np.uint64))
        prices = simulator.price_stages(batch).tolist()
        other = without_network(simulator.profile, SAMPLE)
        unseen = (
            SimulatorCostModel(other, Precision.FP32).price_stages(batch).tolist() if other else [None] * len(prices)
        )
        for (stage, latency_ms), price, left_out in zip(row["latency_ms"].items(), prices, unseen, strict=True):
            yield StageLatency(row["batch"], stage, price, round(1e3 * float(latency_ms), 3), left_out)


def _active_warps(rows: Sequence[Mapping[str, Any]], simulator: SimulatorCostModel) -> Iterator[ActiveWarps]:
    for row in rows:
        network = load(row["model"], batch=row["batch"])
        sequential, found = (
            run_schedule(network, schedule(network, simulator, name), simulator.profile).mean_active_warps
            for name in ("sequential", "ios-both")
        )
        yield ActiveWarps(row["model"], row["batch"], found / sequential, float(row["over_sequential"]))
