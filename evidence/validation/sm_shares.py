"""Kernels and networks on a part of a device's SMs, against the model of partitions.

*Curves.* A kernel's time on all SMs is known, and for most its DRAM bandwidth. One number per curve is fitted, the part
of its time that SMs bound: that part grows as SMs are removed, the DRAM part as their bandwidth does
(:func:`~iossim.backends.simulator.device_rates.bandwidth_part`), the two overlap as arithmetic and DRAM do, and the
rest of the time is constant (launches; kernels too small for the SMs).

*Networks by share.* The simulator's time of a network on its SMs, one unit after another and issued beforehand, and a
time for copies of an image to the device and back, fitted to each network. TensorRT built the engines with a limit to
workspaces, which the table omits: that of NVIDIA's samples is assumed.

*Networks side by side.* The slowdown of a network on its SMs by one on the others: a delay for each of its kernels, and
a part of the L2 throughput that the other has alone. These two numbers are fitted to all pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np
import pandas
from numpy.typing import NDArray
from scipy.optimize import nnls

from evidence.concurrency.microbenchmarks import RTX_5090_FILE, read_rtx_5090
from evidence.concurrency.sm_shares import (
    CURVES_DEVICE,
    CURVES_FILE,
    NETWORKS_DEVICE,
    NETWORKS_FILE,
    PAIRS_FILE,
    RATES_FILE,
    BandwidthCurve,
    SmCurve,
    block_bandwidth,
    fastest_draw,
    read_bandwidths,
    read_curves,
    read_network_pairs,
    read_network_shares,
)
from evidence.validation.concurrency import RatioErrors
from iossim.backends.simulator.device_rates import bandwidth_part
from iossim.backends.simulator.kernel_model import KernelModel
from iossim.base.compiled import Floats
from iossim.hardware.lowering.kernel import Issue
from iossim.hardware.lowering.unit import lower_unit
from iossim.hardware.profile import DeviceProfile
from iossim.ir.network import Network
from iossim.measurements.measurement_set import profile_named
from iossim.models.load import load

#: The zoo's networks by their names in the table.
NETWORKS = {"alexnet": "alexnet", "resnet50": "resnet50", "vgg19": "vgg19", "ssd": "ssd300"}
#: TensorRT's limit on a kernel's intermediate results, as its samples set it.
WORKSPACE_BYTES = 1 << 28
#: Parts of the time that a curve's fit tries, and reaches that a device's fit tries.
_PARTS = np.linspace(0.0, 1.0, 101)
_REACHES = np.arange(1.0, 6.001, 0.02)


@dataclass(frozen=True, slots=True)
class CurveErrors:
    """A kernel's curve: ``sm_part`` of its time on all SMs is bound by them. Errors are mean absolute relative errors;
    ``left_out`` those of every other count, with the part fitted to the rest.
    """

    kernel: str
    rows: int
    sm_part: float
    in_sample: float
    left_out: float


@dataclass(frozen=True, slots=True)
class ReachErrors:
    """The reach that fits a device's bandwidth curve, beside the profile's, and the mean errors with each."""

    device: str
    rows: int
    reach: float
    error: float
    profile_reach: float
    profile_error: float


@dataclass(frozen=True, slots=True)
class NetworkShareErrors:
    """A network on shares of the SMs: ``copy_us`` per image is fitted; ``left_out`` with it fitted to the other shares.

    ``slowdown`` is the error of the time over that on the largest share of the same batch, by price alone: the
    contribution of the model of partitions. None if no batch has two shares.
    """

    network: str
    rows: int
    copy_us: float
    price_alone: float
    in_sample: float
    left_out: float
    slowdown: float | None


@dataclass(frozen=True, slots=True)
class NetworkPairErrors:
    """Slowdowns of concurrent networks: none, by the model, and by the model fitted without that network's pairs."""

    rows: int
    delay_us: float
    l2_part: float
    no_interference: RatioErrors
    in_sample: RatioErrors
    left_out: RatioErrors


@dataclass(frozen=True)
class ShareEvaluation:
    """Results for parts of devices; empty where a table is missing."""

    curves: tuple[CurveErrors, ...] = ()
    reaches: tuple[ReachErrors, ...] = ()
    networks: tuple[NetworkShareErrors, ...] = ()
    pairs: NetworkPairErrors | None = None

    def __bool__(self) -> bool:
        return bool(self.curves or self.reaches or self.networks)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def evaluate_shares(
    folder: Path, profiles: Sequence[DeviceProfile] | None = None, batches: Sequence[int] | None = None
) -> ShareEvaluation:
    """Evaluate the tables in a folder, for ``profiles`` if given.

    Networks are judged at ``batches``, by default all. Raises MeasurementError for an unreadable table.
    """
    curves: tuple[CurveErrors, ...] = ()
    rates: list[BandwidthCurve] = []
    networks: tuple[NetworkShareErrors, ...] = ()
    pairs: NetworkPairErrors | None = None
    profile = profile_named(CURVES_DEVICE, profiles)
    if profile is not None and (path := folder / CURVES_FILE).is_file():
        read = read_curves(path)
        curves = tuple(evaluate_curve(curve, profile) for curve in read)
        rates += fastest_draw(read, CURVES_DEVICE)
    rates += read_bandwidths(path) if (path := folder / RATES_FILE).is_file() else []
    rates += block_bandwidth(read_rtx_5090(path)) if (path := folder / RTX_5090_FILE).is_file() else []
    reaches = [
        evaluate_reach(rate, profile) for rate in rates if (profile := profile_named(rate.device, profiles)) is not None
    ]
    profile = profile_named(NETWORKS_DEVICE, profiles)
    if profile is not None and (path := folder / NETWORKS_FILE).is_file():
        prices = NetworkPrices(profile)
        shares = read_network_shares(path)
        networks = evaluate_networks(shares if batches is None else shares[shares["batch"].isin(batches)], prices)
        if (path := folder / PAIRS_FILE).is_file():
            pairs = evaluate_pairs(read_network_pairs(path), shares, prices.kernels)
    return ShareEvaluation(curves, tuple(reaches), networks, pairs)


def evaluate_curve(curve: SmCurve, profile: DeviceProfile) -> CurveErrors:
    """Errors of one kernel's curve on a device."""
    sms, measured = np.array(curve.sms, dtype=np.float64), np.array(curve.latency_us)
    whole_us = measured[-1]
    gbps = curve.dram_gbps[-1] if curve.dram_gbps else 0.0
    dram_us = whole_us * min(1.0, gbps / profile.dram_bandwidth_gbps)
    predicted = np.array([_curve_us(part, whole_us, dram_us, sms, profile) for part in _PARTS])
    errors = np.abs(predicted / measured - 1.0)
    best = int(errors.mean(axis=1).argmin())
    left_out = np.empty(len(sms))
    for parity in (0, 1):
        # The whole device is known in either case.
        held = np.arange(len(sms)) % 2 == parity
        left_out[held] = errors[int(errors[:, ~held].mean(axis=1).argmin())][held]
    return CurveErrors(curve.kernel, len(sms), float(_PARTS[best]), float(errors[best].mean()), float(left_out.mean()))


def _curve_us(part: float, whole_us: float, dram_us: float, sms: Floats, profile: DeviceProfile) -> Floats:
    """Time of a kernel on so many SMs, given its time on all of them, of which ``part`` is bound by them."""
    norm = profile.parameters.overlap_norm
    fraction = sms / profile.sm_count
    drawn = np.array([bandwidth_part(one, profile.parameters.sm_bandwidth_reach) for one in fraction.tolist()])
    sm_us = part * whole_us
    # The total demand on all SMs cannot exceed the whole time: DRAM then overlaps completely.
    together_us = (sm_us**norm + dram_us**norm) ** (1.0 / norm)
    norm = norm if together_us <= whole_us else np.inf
    if norm == np.inf:
        rest_us = whole_us - max(sm_us, dram_us)
        return np.asarray(rest_us + np.maximum(sm_us / fraction, dram_us / drawn))
    rest_us = whole_us - together_us
    return np.asarray(rest_us + ((sm_us / fraction) ** norm + (dram_us / drawn) ** norm) ** (1.0 / norm))


def evaluate_reach(curve: BandwidthCurve, profile: DeviceProfile) -> ReachErrors:
    """A streaming kernel's bandwidth, over that of the most SMs, where each has at most one block."""
    own_sms = np.array(curve.sms) <= profile.sm_count
    fraction = np.array(curve.sms)[own_sms] / profile.sm_count
    measured = np.array(curve.dram_gbps)[own_sms]
    measured /= measured[-1]

    def error(reach: float) -> float:
        drawn = np.array([bandwidth_part(one, reach) for one in fraction.tolist()])
        return float(np.abs(drawn / drawn[-1] / measured - 1.0).mean())

    reach = min(_REACHES.tolist(), key=error)
    own = profile.parameters.sm_bandwidth_reach
    return ReachErrors(profile.name, len(measured), reach, error(reach), own, error(own))


class NetworkPrices:
    """Networks of the zoo on parts of a device, sequentially; equal units are priced once."""

    def __init__(self, profile: DeviceProfile) -> None:
        self._profile = profile
        self._unit_us: dict[tuple[str, int], float] = {}
        self._model = cache(lambda sms: KernelModel(profile, Issue.GRAPH, sms=sms))
        self.network: Callable[[str, int], Network] = cache(lambda name, batch: load(NETWORKS[name], batch=batch))

    def latency_us(self, name: str, batch: int, percent: int) -> float:
        """Latency on a percentage of the SMs, by kernels within the workspace limit."""
        sms = max(1, round(percent / 100 * self._profile.sm_count))
        network = self.network(name, batch)
        for unit, signature in zip(network.units, network.signatures, strict=True):
            if (signature, sms) not in self._unit_us:
                steps = lower_unit(network, unit, self._profile)
                known = [[one for one in step if one.workspace_bytes <= WORKSPACE_BYTES] or step for step in steps]
                prices = (price for step in known for price in self._model(sms).fastest(step)[1])
                self._unit_us[signature, sms] = fsum(price.alone_us for price in prices)
        return fsum(self._unit_us[signature, sms] for signature in network.signatures)

    def kernels(self, name: str) -> int:
        """Number of kernels that a network runs on the whole device, at batch 1."""
        network = self.network(name, 1)
        model = KernelModel(self._profile)
        return sum(
            len(candidate.kernels)
            for unit in network.units
            for candidate, _ in model.chosen(lower_unit(network, unit, self._profile))
        )


def evaluate_networks(shares: pandas.DataFrame, prices: NetworkPrices) -> tuple[NetworkShareErrors, ...]:
    """Errors of networks on shares, for those of the zoo."""
    found = []
    for name, rows in shares[shares["network"].isin(NETWORKS)].groupby("network", sort=False):
        own = rows.reset_index(drop=True)
        measured, batch, percent = (own[column].to_numpy() for column in ("latency_us", "batch", "percent"))
        priced = np.array(
            [prices.latency_us(name, *each) for each in own[["batch", "percent"]].itertuples(index=False)]
        )
        copy_us = _copy_us(priced, measured, batch)
        left_out = np.empty(len(own))
        for share in np.unique(percent):
            held = percent == share
            us = _copy_us(priced[~held], measured[~held], batch[~held]) if not held.all() else copy_us
            left_out[held] = np.abs((priced + us * batch)[held] / measured[held] - 1.0)
        base = own.groupby("batch")["percent"].transform("idxmax").to_numpy()
        others = np.flatnonzero(base != own.index)
        slowdown = (priced / priced[base]) / (measured / measured[base])
        found.append(
            NetworkShareErrors(
                name,
                len(own),
                copy_us,
                float(np.abs(priced / measured - 1.0).mean()),
                float(np.abs((priced + copy_us * batch) / measured - 1.0).mean()),
                float(left_out.mean()),
                float(np.abs(slowdown[others] - 1.0).mean()) if len(others) else None,
            )
        )
    return tuple(found)


def _copy_us(priced: Floats, measured: Floats, batch: Floats) -> float:
    """Nonnegative time of copies per image by least squares of relative errors."""
    return float(nnls((batch / measured)[:, None], 1.0 - priced / measured)[0][0])


def evaluate_pairs(
    runs: pandas.DataFrame, shares: pandas.DataFrame, kernels: Callable[[str], int]
) -> NetworkPairErrors | None:
    """Slowdowns of concurrent networks whose L2 throughput alone is known; None without any."""
    place = ["network", "batch", "percent"]
    alone = shares[shares["l2"].notna()].drop_duplicates(place, keep="last")[[*place, "l2"]]
    of_other = alone.rename(columns={"network": "other", "batch": "other_batch", "percent": "other_percent"})
    known = runs[runs["network"].isin(NETWORKS)].merge(of_other)
    if known.empty:
        return None
    measured = (known["together_us"] / known["alone_us"]).to_numpy()
    counts = known["network"].map({name: kernels(name) for name in known["network"].unique()})
    features = np.stack([counts / known["alone_us"], known["l2"]], axis=1)

    def fitted(rows: NDArray[np.bool_]) -> Floats:
        weighted = features[rows] / measured[rows, None]
        return np.asarray(nnls(weighted, 1.0 - 1.0 / measured[rows])[0])

    both = fitted(np.ones(len(known), dtype=np.bool_))
    left_out = np.empty(len(known))
    for name in known["network"].unique():
        held = (known["network"] == name).to_numpy()
        without = ~held & (known["other"] != name).to_numpy()
        left_out[held] = (1.0 + features[held] @ (fitted(without) if without.any() else both)) / measured[held] - 1.0
    return NetworkPairErrors(
        len(known),
        float(both[0]),
        float(both[1]),
        RatioErrors.of(1.0 / measured - 1.0),
        RatioErrors.of((1.0 + features @ both) / measured - 1.0),
        RatioErrors.of(left_out),
    )
