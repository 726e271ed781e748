"""Published figures of whole networks as something to fit.

What a network takes unit after unit tells the same parameters as kernels measured alone, and the gap between kernels
and the cost of a launch, which no isolated kernel tells (``host_fit``, after the kernels). What concurrent schedules take, and
stages of several groups, is fitted by none: it is what the model of concurrency is tested by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iossim.calibration.recording import STEADY_FACTOR
from iossim.calibration.samples import SequenceSamples
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.measurements.published_figures import SEQUENTIAL, fitted_networks, published_stages_us
from iossim.models.load import load

#: The network whose stages are published too, one by one.
SAMPLE = "ios_sample"


#: What a unit of a network counts beside rows of recordings: only networks show what calls in a row take, and recordings of
#: single calls, of which there are thousands, would bend it to what they miss.
ROWS_A_UNIT = 3


@dataclass(frozen=True, slots=True)
class PublishedNetwork:
    """A network and its published latencies by scheduler on a device, microseconds."""

    model: str
    network: Network
    device: str
    latency_us: dict[str, float]


def published_networks(device: str) -> list[PublishedNetwork]:
    """The networks with published latencies on a device that fits may see."""
    return [
        PublishedNetwork(
            row["model"],
            load(row["model"], batch=row["batch"]),
            device,
            {name: 1e3 * float(ms) for name, ms in row["latency_ms"].items()},
        )
        for row in fitted_networks(device)
    ]


def published_models(device: str) -> tuple[str, ...]:
    """The models of :func:`published_networks`, each once."""
    return tuple(dict.fromkeys(row["model"] for row in fitted_networks(device)))


def run_unit_after_unit(profile: DeviceProfile, without: str = "") -> SequenceSamples | None:
    """Samples of the published networks as wholes, and of the single units that are published; None for a device without.

    ``without`` names a network that is left out.
    """
    networks = [one for one in published_networks(profile.name) if one.model != without]
    figures: list[tuple[Network, Sequence[int], float]] = [
        (one.network, range(len(one.network.units)), one.latency_us[SEQUENTIAL])
        for one in networks
        if SEQUENTIAL in one.latency_us
    ]
    figures += _single_units(networks, profile.name)
    return SequenceSamples.of("published networks", profile, figures, float(len(figures))) if figures else None


def sequences(profile: DeviceProfile, without: str = "") -> list[SequenceSamples]:
    """Samples of the published networks unit after unit, and of single units; none for a device without.

    ``without`` names a network that is left out. A network counts as many rows as :data:`ROWS_A_UNIT` times its units; a
    unit of a stage counts as any row that has no host in it.
    """
    networks = [one for one in published_networks(profile.name) if one.model != without]
    whole = [
        (one.network, range(len(one.network.units)), one.latency_us[SEQUENTIAL])
        for one in networks
        if SEQUENTIAL in one.latency_us and one.model != SAMPLE
    ]
    found = []
    if whole:
        weight = float(ROWS_A_UNIT * sum(len(units) for _, units, _ in whole))
        found.append(SequenceSamples.of("published networks", profile, whole, weight))
    single = _single_units(networks, profile.name)
    if single:
        found.append(SequenceSamples.of("published stages", profile, single, STEADY_FACTOR * len(single)))
    return found


def _single_units(networks: Sequence[PublishedNetwork], device: str) -> list[tuple[Network, Sequence[int], float]]:
    """The units of the sample network that ran by themselves, and how long."""
    sample = next((one.network for one in networks if one.model == SAMPLE), None)
    if sample is None:
        return []
    stages = published_stages_us(device)
    return [(sample, (unit,), stages[name]) for name, unit in sample.unit_index.items() if name in stages]
