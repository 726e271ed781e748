"""Parameters of an unmeasured device, transferred from measured ones; and launch costs that devices borrow.

Each *source device* is a calibrated chip. Effects that scale with the datasheet are removed, and applied again:

- **The clock under load.** Dynamic power grows about with the square of the clock, so beyond an onset of ``x0``
  GFLOP/s of peak per W a board's clock falls to ``sqrt(x0 / x)`` of boost. Newer processes do more per watt.
  Efficiencies of arithmetic are divided by this fraction. ``x0`` makes the sources' efficiencies agree best.
- **The kind of memory.** The fraction of DRAM's peak that kernels reach depends on the kind of memory (stacked HBM, or
  GDDR), so sources with the other kind have a low weight there.

Otherwise sources of closer generations have a higher weight. Averages are geometric if values are positive. Only fitted
parameters are transferred; all others stay those of the architecture.

The host's launch times were fitted on one device. Others borrow them, with the spread of hosts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache, cached_property
from math import exp, log, sqrt
from typing import Any, NamedTuple

from pydantic import Field

from iossim.base.shipped_yaml import shipped
from iossim.base.values import Value
from iossim.hardware.compute_capability import GENERATIONS, LIMITS, WARP_THREADS
from iossim.hardware.parameters import EngineOverheads, ModelParameters
from iossim.hardware.provenance import Band, Borrowed, KindError, Provenance


class Concurrency(Value):
    """Launch costs in the profile of ``device``."""

    device: str
    values: dict[str, float] = Field(min_length=1)
    spread: dict[str, float] = Field(default_factory=dict)

    def lent_to(self, provenance: Provenance) -> Provenance:
        """The provenance of a device that borrows these."""
        others = [one for one in provenance.borrowed if not set(one.parameters) & set(self.values)]
        return provenance.model_copy(
            update={
                "spread": {k: v for k, v in provenance.spread.items() if k not in self.values} | self.spread,
                "borrowed": [*others, Borrowed(device=self.device, parameters=list(self.values))],
            }
        )


#: Efficiencies of arithmetic, each with the parameter that caps it on low-power boards.
ARITHMETIC = {
    "gemm_efficiency": "gemm_sustained_gflops_per_watt",
    **dict.fromkeys(
        ("implicit_gemm_efficiency", "direct_efficiency", "winograd_fused_efficiency", "winograd_gemm_efficiency"),
        "sustained_gflops_per_watt",
    ),
}
CAPS = frozenset(ARITHMETIC.values())
#: Fractions of DRAM's peak.
MEMORY = frozenset(
    f"{what}_efficiency" for what in ("dram", "stream", "transform", "filter_transform", "tile_generation")
)
#: Chips with stacked memory; all others have GDDR.
STACKED_MEMORY = frozenset({"6.0", "7.0", "8.0", "9.0", "10.0"})
#: Weight of a source with the other kind of memory, for memory's parameters and for the others.
OTHER_MEMORY_WEIGHT = 0.1
OTHER_BOARD_WEIGHT = 0.25
#: Weight of a source with the same kind of SM, relative to one of the same generation only.
SAME_CHIP_WEIGHT = 10.0
#: Prior for the onset of the clock's fall, in GFLOP/s of peak per W, and the standard deviation of its
#: logarithm: boards of 250 to 300 W reach their peak at about this.
ONSET_GFLOPS_PER_WATT = 50.0
_ONSET_SPREAD = 0.3
_EFFICIENCY_SPREAD = 0.1


class BoardFacts(NamedTuple):
    """The datasheet facts that a transfer uses; ``peak_gflops_per_watt`` is the fp32 peak over board power."""

    compute_capability: str
    peak_gflops_per_watt: float
    fp32_lanes_per_sm: int = 64

    @property
    def fed_lanes(self) -> float:
        """Fraction of the lanes fed by one instruction per scheduler: Kepler's need two of one warp."""
        return min(1.0, LIMITS[self.compute_capability].warp_schedulers * WARP_THREADS / self.fp32_lanes_per_sm)

    @property
    def process_gain(self) -> float:
        """Arithmetic per watt at one clock, relative to the process of the oldest sources."""
        return float(self._generation.get("process_gain", 1.0))

    @property
    def demand(self) -> float:
        """GFLOP/s of peak per W if the chip were made in the sources' process."""
        return self.peak_gflops_per_watt / self.process_gain

    @property
    def has_stacked_memory(self) -> bool:
        return self.compute_capability in STACKED_MEMORY

    @property
    def generation(self) -> int:
        """The place of its generation in the order in which they came."""
        return int(self._generation["order"])

    @property
    def _generation(self) -> dict[str, Any]:
        return GENERATIONS[LIMITS[self.compute_capability].architecture]


class SourceDevice(Value):
    """A calibrated chip: ``boards`` are the devices that its fit covers, the first the one that the facts are for."""

    boards: list[str] = Field(min_length=1)
    compute_capability: str
    peak_gflops_per_watt: float = Field(gt=0)
    #: Fitted parameters, of the model and of the engine, without those that its measurements do not determine.
    values: dict[str, float]

    @property
    def facts(self) -> BoardFacts:
        return BoardFacts(self.compute_capability, self.peak_gflops_per_watt)


class TransferTable(Value):
    """Shipped sources, and the error of a transfer to each with its own measurements left out."""

    sources: list[SourceDevice] = Field(default_factory=list)
    date: str | None = None
    #: Errors of left-out devices: from datasheet facts alone, and refined with a few of their measurements.
    zero_shot: list[KindError] = Field(default_factory=list)
    refined: list[KindError] = Field(default_factory=list)
    #: The bands of both, over all left-out devices.
    bands: dict[str, list[Band]] = Field(default_factory=dict)
    refined_bands: dict[str, list[Band]] = Field(default_factory=dict)
    #: Borrowed by all GPUs without measured networks.
    concurrency: Concurrency | None = None

    @cached_property
    def onset(self) -> float:
        """:func:`clock_onset` of the sources."""
        return clock_onset(self.sources)

    def covers(self, device: str) -> bool:
        """True if a device is one of the sources' boards."""
        return any(device in source.boards for source in self.sources)


def transferred_values(
    facts: BoardFacts, sources: Sequence[SourceDevice], onset: float | None = None
) -> dict[str, float]:
    """Values of the sources' parameters for a device with these facts; raises ValueError without sources.

    ``onset`` is :func:`clock_onset` of the sources, if already known.
    """
    if not sources:
        raise ValueError("no source to transfer parameters from")
    onset = clock_onset(sources) if onset is None else onset
    own_part = sustained_clock(facts, onset) * facts.fed_lanes
    names = sorted({name for source in sources for name in source.values})
    result: dict[str, float] = {}
    for name in names:
        own = [source for source in sources if name in source.values]
        if name in CAPS:
            continue
        weights = [_weight(facts, source.facts, name in MEMORY) for source in own]
        if name in ARITHMETIC:
            reached = [_reached(source, name) / sustained_clock(source.facts, onset) for source in own]
            result[name] = min(1.0, own_part * _mean(reached, weights))
        else:
            result[name] = _mean([source.values[name] for source in own], weights)
    best = max([own_part, *(result[name] for name in ARITHMETIC if name in result)])
    # The efficiencies include the clock under load already: a board's own cap must not apply again.
    result |= dict.fromkeys(sorted(CAPS), facts.peak_gflops_per_watt * best)
    return {name: float(f"{value:.4g}") for name, value in result.items()}


def sustained_clock(facts: BoardFacts, onset_gflops_per_watt: float) -> float:
    """The clock under full load over the boost clock, at most 1."""
    return min(1.0, sqrt(onset_gflops_per_watt / facts.demand))


def clock_onset(sources: Sequence[SourceDevice]) -> float:
    """GFLOP/s of peak per W beyond which clocks fall: the value that makes the sources' efficiencies agree best.

    Least squares of the logarithms around each parameter's mean, with a prior, over a grid of steps of one per cent.
    """

    def disagreement(onset: float) -> float:
        total = (log(onset / ONSET_GFLOPS_PER_WATT) / _ONSET_SPREAD) ** 2
        for name in ARITHMETIC:
            entries = [
                log(_reached(source, name) / sustained_clock(source.facts, onset))
                for source in sources
                if name in source.values
            ]
            if entries:
                mean = sum(entries) / len(entries)
                total += sum(((entry - mean) / _EFFICIENCY_SPREAD) ** 2 for entry in entries) / len(ARITHMETIC)
        return total

    return min((ONSET_GFLOPS_PER_WATT * exp(step / 100) for step in range(-80, 81)), key=disagreement)


def _reached(source: SourceDevice, name: str) -> float:
    """Fraction of the peak at boost clock that a source's kernels reach, including throttling."""
    cap = source.values.get(ARITHMETIC[name])
    efficiency = source.values[name]
    return efficiency if cap is None else min(efficiency, cap / source.peak_gflops_per_watt)


def _weight(facts: BoardFacts, source: BoardFacts, is_memory: bool) -> float:
    near = 1.0 / (1 + abs(facts.generation - source.generation))
    if facts.compute_capability == source.compute_capability:
        near *= SAME_CHIP_WEIGHT
    if facts.has_stacked_memory == source.has_stacked_memory:
        return near
    return near * (OTHER_MEMORY_WEIGHT if is_memory else OTHER_BOARD_WEIGHT)


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Weighted mean: geometric for positive values, else arithmetic."""
    total = sum(weights)
    if min(values) > 0.0:
        return exp(sum(weight * log(value) for value, weight in zip(values, weights, strict=True)) / total)
    return sum(weight * value for value, weight in zip(values, weights, strict=True)) / total


@cache
def transfer_table() -> TransferTable:
    """The shipped table, ``hardware/transfer.yaml``; ``python -m evidence.profiles.leave_one_out`` makes it."""
    return TransferTable.model_validate(shipped("iossim.hardware", "transfer.yaml"))


def transferred_provenance(table: TransferTable, samples: int = 0, kinds: Collection[str] = ()) -> Provenance:
    """Provenance of transferred parameters, refined by ``samples`` measurements of the device, of these ``kinds``."""
    sources = ", ".join(source.boards[0] for source in table.sources)
    refined = [error for error in table.refined if error.kind in kinds]
    shown = {error.kind for error in refined}
    errors = [*refined, *(error for error in table.zero_shot if error.kind not in shown)]
    bands = table.bands | {kind: bands for kind, bands in table.refined_bands.items() if kind in kinds}
    convolutions = [error for error in errors if error.kind == "conv"]
    note = f"transferred from {sources}"
    if samples:
        note += f", refined with {samples} measurements of the device"
    if convolutions:
        rows = sum(error.rows for error in convolutions)
        mean = sum(error.rows * error.mape_percent for error in convolutions) / rows
        note += f"; convolutions of devices that were left out were so predicted {mean:.1f} % off on average"
    made = Provenance(kind="transferred", note=note, date=table.date, held_out=list(errors), bands=dict(bands))
    return made if table.concurrency is None else table.concurrency.lent_to(made)


def transferred_to(data: dict[str, Any]) -> dict[str, Any]:
    """``parameters``, ``engine`` and ``provenance`` for a file with facts only, transferred from calibrated devices.

    Empty if the table has no sources, for the sources' own boards, whose files leave out architecture defaults, and if
    a fact is missing or wrong: its own validation reports it.
    """
    table = transfer_table()
    try:
        sheet = {name: fact["value"] for name, fact in data["datasheet"].items() if isinstance(fact, dict)}
        peak_gflops = 2.0 * sheet["sm_count"] * sheet["fp32_lanes_per_sm"] * sheet["boost_clock_ghz"]
        watts, capability = sheet["board_power_w"], sheet["compute_capability"]
        is_sound = capability in LIMITS and 0 < peak_gflops < float("inf") and 0 < watts < float("inf")
        if not is_sound or not table.sources or table.covers(str(data.get("name"))):
            return {}
        facts = BoardFacts(capability, peak_gflops / watts, sheet["fp32_lanes_per_sm"])
        values = transferred_values(facts, table.sources, table.onset)
    except (KeyError, TypeError, AttributeError, ArithmeticError):
        return {}
    if table.concurrency is not None:
        values |= table.concurrency.values
    return {
        "parameters": {key: values[key] for key in values if key in ModelParameters.model_fields},
        "engine": {key: values[key] for key in values if key in EngineOverheads.model_fields},
        "provenance": transferred_provenance(table),
    }
