"""Contract of every device profile: subclass, and load yours.

class TestMine(DeviceConformance):
    def profile(self):
        return iossim.device("path/to/mine.yaml")
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import pytest

from iossim.cost.create import create_cost_model
from iossim.execution.engine import Engine
from iossim.hardware.plausibility import implausible
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.search.scheduler import schedule


class DeviceConformance(ABC):
    """A profile is plausible, and schedules on it are finite, and no slower than the sequential one."""

    models = ("squeezenet", "ios_sample")

    @abstractmethod
    def profile(self) -> DeviceProfile: ...

    def test_it_is_plausible(self) -> None:
        assert implausible(self.profile()) == []

    @pytest.mark.parametrize("model", models)
    def test_networks_can_be_scheduled(self, model: str) -> None:
        network = load(model)
        prices = create_cost_model("simulator", self.profile(), Precision.FP32, Engine.PAPER, None)
        sequential, best = (schedule(network, prices, name) for name in ("sequential", "ios-both"))
        assert 0 < best.latency_us <= sequential.latency_us < np.inf

    def test_larger_batches_take_no_less(self) -> None:
        latencies_us = []
        for batch in (1, 4, 16):
            network = load("squeezenet", batch=batch)
            prices = create_cost_model("simulator", self.profile(), network.precision, Engine.PAPER, None)
            latencies_us.append(schedule(network, prices, "sequential").latency_us)
        assert latencies_us == sorted(latencies_us)
