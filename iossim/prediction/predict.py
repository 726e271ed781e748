"""Predictions for operators that need not have been measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from iossim.backends.simulator.kernel_model import KernelModel
from iossim.devices.parameters import EngineOverheads
from iossim.devices.profile import DeviceProfile
from iossim.lowering.kernel import Candidate, WorkClass
from iossim.lowering.target import step_candidates
from iossim.measurements.operator import Operator
from iossim.prediction.operator_interval import interval


@dataclass(frozen=True, slots=True)
class Prediction:
    """The steady device time of one call among many.

    Kernels, gaps between them and the dispatch floor are in ``gpu_time_us`` (on a CPU: what its thread takes), the
    host's overhead is not; ``low_us`` to ``high_us`` is where nine of ten measurements are expected.
    """

    gpu_time_us: float
    low_us: float
    high_us: float
    algorithm: str
    #: Names of the kernels of the algorithm, in order.
    kernels: tuple[str, ...]


def predict(operators: Sequence[Operator], profile: DeviceProfile) -> list[Prediction]:
    """A prediction for each operator, in order; equal operators are lowered once."""
    model = KernelModel(profile)
    known: dict[Operator, Prediction] = {}
    for operator in operators:
        if operator not in known:
            known[operator] = _predict_one(operator, model, profile)
    return [known[operator] for operator in operators]


def _predict_one(operator: Operator, model: KernelModel, profile: DeviceProfile) -> Prediction:
    chosen, prices = model.fastest(step_candidates(operator.step(), profile))
    gpu_time_us = fsum(price.alone_us for price in prices) + dispatch_us(chosen, profile.engine)
    low_us, high_us = interval(operator, gpu_time_us, profile)
    return Prediction(gpu_time_us, low_us, high_us, chosen.algorithm, tuple(kernel.name for kernel in chosen.kernels))


def dispatch_us(candidate: Candidate, engine: EngineOverheads) -> float:
    """Device time of a call beyond its kernels and gaps, where calls are issued one after another."""
    is_tensor_product = candidate.kernels[0].work_class is WorkClass.TENSOR
    call_us = engine.tensor_dispatch_us if is_tensor_product else engine.dispatch_us
    return call_us + engine.dispatch_kernel_us * (len(candidate.kernels) - 1)
