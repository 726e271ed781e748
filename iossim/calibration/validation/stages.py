"""Measured stages, groups of operators that ran at the same time, against their prices.

Recordings on GPUs replay CUDA graphs: stages are priced by the graph engine, their fork and join included. On CPUs
they are by the paper engine, with a synchronisation before and behind those of several groups.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.calibration.prediction.accuracy import Accuracy
from iossim.calibration.prediction.stage_price import can_be_priced, recorded_engine, stage_us
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision
from iossim.measurements.measurement import MeasurementSet

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StageEvaluation:
    """Measured and predicted times of the stages of a data set, microseconds; every array has an entry a stage.

    ``serial_us`` is the same operators in one stream, nan where that was not measured; its prediction is always there.
    ``left_out`` stages were of several precisions, or of more operators than a problem holds.
    """

    device: str
    data_set: str
    groups: NDArray[np.int64]
    latency_us: Floats
    predicted_us: Floats
    serial_us: Floats
    predicted_serial_us: Floats
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.latency_us)

    def __getitem__(self, rows: NDArray[np.bool_]) -> StageEvaluation:
        """A part of the stages."""
        names = ("groups", "latency_us", "predicted_us", "serial_us", "predicted_serial_us")
        arrays: dict[str, Any] = {name: getattr(self, name)[rows] for name in names}
        return replace(self, **arrays)

    @property
    def concurrent(self) -> StageEvaluation:
        """The stages of several groups."""
        return self[self.groups > 1]

    def latency(self) -> Accuracy:
        """The accuracy of the stages' latencies."""
        return Accuracy.of(self.predicted_us, self.latency_us)

    def gain(self) -> Accuracy:
        """The accuracy of what running side by side gains: the time in one stream over that of the stage."""
        known = np.isfinite(self.serial_us)
        predicted = self.predicted_serial_us[known] / self.predicted_us[known]
        return Accuracy.of(predicted, self.serial_us[known] / self.latency_us[known])

    def to_json(self) -> dict[str, Any]:
        concurrent = self.concurrent
        return {
            "device": self.device,
            "data_set": self.data_set,
            "stages": len(self),
            "concurrent_stages": len(concurrent),
            "left_out": self.left_out,
            "latency": self.latency().to_json(),
            "concurrent_latency": concurrent.latency().to_json(),
            "concurrent_gain": concurrent.gain().to_json(),
        }


def evaluate_stages(measured: MeasurementSet, profile: DeviceProfile) -> StageEvaluation:
    """Price every stage of a set; none of them was held out of any fit of operators, nor seen by one."""
    models: dict[Precision, SimulatorCostModel] = {}
    chosen = [stage for stage in measured.stages if can_be_priced(stage)]
    predicted: list[float] = []
    serial: list[float] = []
    for stage in chosen:
        precision = stage.groups[0][0].precision
        if precision not in models:
            models[precision] = SimulatorCostModel(profile, precision, recorded_engine(profile))
        predicted.append(stage_us(stage.groups, models[precision]))
        in_one_stream = [operator for group in stage.groups for operator in group]
        serial.append(stage_us([in_one_stream], models[precision]))
    return StageEvaluation(
        profile.name,
        measured.header.data_set,
        np.array([len(stage.groups) for stage in chosen], dtype=np.int64),
        np.array([stage.latency_us for stage in chosen]),
        np.array(predicted),
        np.array([np.nan if stage.serial_us is None else stage.serial_us for stage in chosen]),
        np.array(serial),
        len(measured.stages) - len(chosen),
    )
