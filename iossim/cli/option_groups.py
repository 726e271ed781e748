"""Groups of options that several commands share: reading of a model, admissible stages and their prices, search for
streams, transforms of a network, and timing of plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from iossim.base.errors import OptionError, once
from iossim.cli.options import OptionGroup, several_devices, with_flags

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.execution.backend import Timing
    from iossim.ir.network import Network
    from iossim.search.options import SearchOptions


@dataclass(frozen=True)
class BatchOptions(OptionGroup):
    """Batch size of a model."""

    PANEL = "Model"
    batch: int | None = None


@dataclass(frozen=True)
class ReadingOptions(OptionGroup):
    """Options for reading a model, apart from its batch, each named as its field."""

    PANEL = "Model"
    dtype: str | None = None
    shape: list[str] | None = None
    dim: list[str] | None = None
    strict: bool = False
    static_part: bool = False
    passes: list[str] | None = None
    graphs: Path | None = None
    units: str | None = None
    max_block: int | None = None
    training: bool = False

    def network_of_batch(self, model: str, batch: int | None) -> Network:
        from iossim.models.load import load
        from iossim.models.passes.unit_fusion import MODEL

        return load(
            model,
            batch=batch,
            dtype=self.dtype,
            shapes=_sizes_by_name(self.shape or (), "--shape", "1x3x224x224"),
            graphs=self.graphs,
            units=self.units or MODEL,
            max_block=self.max_block,
            dimensions={name: size for name, (size,) in _sizes_by_name(self.dim or (), "--dim", "8").items()},
            strict=self.strict,
            static_part=self.static_part,
            passes=self.passes or (),
            training=self.training,
        )


def make_ready(device: str | None) -> None:
    """Describe this machine's CPU if it is the device and has no profile yet; raises DeviceError."""
    if device is not None and device.startswith("cpu"):
        from iossim.hardware.host_measuring import ensure_host_cpu

        ensure_host_cpu(device)


@dataclass(frozen=True)
class ModelOptions(ReadingOptions, BatchOptions):
    """Options for reading a model: its batch, and all others."""

    @classmethod
    def check_names(cls, given: Mapping[str, Any]) -> None:
        """Raises ModelError for an unknown model."""
        if given.get("model"):
            from iossim.models.load import check_known

            check_known(given["model"])

    def network(self, model: str) -> Network:
        return self.network_of_batch(model, self.batch)


@dataclass(frozen=True)
class SpaceOptions(OptionGroup):
    """Limits of the search space: size of stages and of their groups, and their memory."""

    PANEL = "Search"
    max_group_size: int | None = None
    max_groups: int | None = None
    workspace_limit: str | None = None
    company: bool = False
    stages: str = "general"

    @property
    def search(self) -> SearchOptions:
        """Raises OptionError."""
        from iossim.tasks.requests import search_options

        return search_options(self.stages, self.max_group_size, self.max_groups, self.workspace_limit, self.company)


@dataclass(frozen=True)
class PricingOptions(SpaceOptions):
    """Search space, engine and cost model."""

    PANEL = "Prices"
    engine: str = "auto"
    cost_model: str = "simulator"
    store: Path | None = None

    @classmethod
    def check_names(cls, given: Mapping[str, Any]) -> None:
        """Raises DeviceError."""
        if given.get("device"):
            from iossim.hardware.load import check_known

            for device in several_devices(given["device"]):
                check_known(device)

    def prices(self, network: Network, device: str | None) -> CostModel:
        """Raises OptionError."""
        from iossim.tasks.requests import cost_model

        make_ready(device)
        return cost_model(self.cost_model, device, network.precision, self.engine, self.store)


@dataclass(frozen=True)
class StreamOptions(OptionGroup):
    """Options of the search for streams."""

    PANEL = "Search"
    seconds: float | None = None
    stream_seed: int = 0

    def of(self, search: SearchOptions, schedulers: Sequence[str] = ()) -> SearchOptions:
        """Raises OptionError for an invalid time or seed, or an option that none of the schedulers heeds."""
        from iossim.search.scheduler import check_heeded

        found = replace(search, seconds=self.seconds, seed=self.stream_seed)
        check_heeded(found, schedulers)
        return found


@dataclass(frozen=True)
class TransformOptions(OptionGroup):
    """Transforms of the network, rewriting and micro-batches: the options of :func:`iossim.api.task` of these names."""

    PANEL = "Graph and micro-batches"
    rewrite: str | None = None
    rewrite_search: str = "joint"
    alpha: float = 1.05
    rewrite_budget: str = "200"
    unproved: bool = False
    micro_batch: str | None = None
    search: str = "in-turn"


@dataclass(frozen=True)
class TimingOptions(OptionGroup):
    """Options of timing."""

    PANEL = "Timing"
    rounds: int = 30
    warm_up: int = 3
    seed: int = 0
    cold: bool = False

    def timing(self) -> Timing:
        """Raises OptionError for an invalid number of rounds or seed."""
        from iossim.execution.backend import Timing

        for name, least in (("rounds", 1), ("warm_up", 0), ("seed", 0)):
            if (value := getattr(self, name)) < least:
                raise OptionError(with_flags(f"`{name}` {value} is too few; give {least} or more"))
        return Timing(self.rounds, self.warm_up, self.seed, self.cold)


def _sizes_by_name(given: Sequence[str], flag: str, example: str) -> dict[str, tuple[int, ...]]:
    """``["x=1x3"]`` as ``{"x": (1, 3)}``; raises OptionError naming what is not as the ``example``, or given twice."""
    found: dict[str, tuple[int, ...]] = {}
    for text in given:
        name, _, written = text.rpartition("=")
        sizes = written.split("x") if "x" in example else [written]
        if not name or not all(size.isdecimal() for size in sizes):
            raise OptionError(f"{flag} {text!r} is not a size; write NAME={example}")
        once([*found, name], flag)
        found[name] = tuple(map(int, sizes))
    return found
