"""How wrong predictions of unseen devices are: each calibrated chip in turn is left out, and predicted from the others.

A chip's sources are fitted here, from a starting point that knows no device, so that nothing of the chip left out is in
them; profiles that ship are not looked at, but for their datasheet facts. Boards with the same chip (by compute
capability and SMs) are one source, and left out together.

``python -m iossim.calibration.leave_one_out`` makes ``iossim/devices/transfer.yaml`` anew, with the sources, errors and
bands found here, and what the profile of the one device with published schedules says of concurrency.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import iossim.devices.transfer
from iossim.calibration.board_state import NOT_TOLD
from iossim.calibration.concurrency_fit import lent_by
from iossim.calibration.fit import Fit, fit
from iossim.calibration.neutral import neutral
from iossim.calibration.recording import default_weight
from iossim.calibration.residuals import Residuals, bands_by_kind, device_times, residuals_by_kind
from iossim.calibration.samples import OperatorSamples, fit_nuisances, hidden
from iossim.calibration.transfer import refined_values, source_device, transferred
from iossim.devices.borrowed import Concurrency
from iossim.devices.kind import GPU
from iossim.devices.kinds.gpu import GPU_SPACE
from iossim.devices.load import device
from iossim.devices.parameters import CALL
from iossim.devices.profile import DeviceProfile, with_values
from iossim.devices.transfer import CAPS, SourceDevice, TransferTable
from iossim.measurements.measurement import Measurement, MeasurementSet
from iossim.prediction.bands import band_key
from iossim.user_files import write_atomically

Floats = NDArray[np.float64]
#: A measurement set, and the profile of its device.
DeviceSet = tuple[MeasurementSet, DeviceProfile]
Progress = Callable[[str, int, int], None]

#: The kind whose samples refine a transfer here.
SAMPLED_KIND = "conv"
#: Samples of the errors that ship.
SHIPPED_SAMPLES = 20
#: Chips with fewer rows than this are no sources, and not judged.
FEWEST_ROWS = 100
#: The one device with published schedules: all other GPUs take its parameters of concurrency.
CONCURRENCY_FROM = "v100-sxm2"
_ROUNDS = 25
#: Sources are fitted to every third row: more changes nothing that another device would notice.
_ROW_STEP = 3


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Predictions of one kind of operators in a data set of a device that was left out.

    ``refined`` leaves out the rows that refined it; None without samples, and for other kinds than the sampled one.
    """

    #: The chip left out, by the name of its best measured board, and the board that this is of.
    chip: str
    device: str
    zero_shot: Residuals
    refined: Residuals | None = None

    @property
    def kind(self) -> str:
        return self.zero_shot.key


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """All devices left out in turn; ``samples`` are those that refined each, drawn by ``seed``."""

    rows: tuple[LeftOut, ...]
    #: Every chip, as a source of the others.
    sources: tuple[SourceDevice, ...]
    samples: int
    seed: int

    def errors(self, kind: str, refined: bool = False) -> dict[str, float]:
        """Mean absolute relative error of the device time by chip, over all its data sets, as a fraction."""
        by_chip: dict[str, list[Floats]] = {}
        for row in self.rows:
            one = row.refined if refined else row.zero_shot
            if row.kind == kind and one is not None:
                by_chip.setdefault(row.chip, []).append(np.abs(one.errors))
        return {chip: float(np.concatenate(errors).mean()) for chip, errors in by_chip.items()}


@dataclass(frozen=True, eq=False)
class _Chip:
    """All that was measured on boards with one chip; the first of ``profiles`` is the one that facts are of."""

    profiles: tuple[DeviceProfile, ...]
    sets: tuple[DeviceSet, ...]

    @property
    def name(self) -> str:
        return self.profiles[0].name


def leave_one_out(
    sets: Sequence[DeviceSet],
    samples: int = 0,
    seed: int = 0,
    progress: Progress = lambda label, done, total: None,
) -> LeaveOneOut:
    """Predict each chip from all others: from datasheet facts, and with ``samples`` of its convolutions.

    Takes about half a minute a chip. Raises ValueError if fewer than two chips have rows enough.
    """
    chips = _chips(sets)
    if len(chips) < 2:
        raise ValueError(
            f"{len(chips)} chips with {FEWEST_ROWS} rows and more: at least 2 are needed to leave one out"
        )
    sources: dict[str, SourceDevice] = {}
    for index, chip in enumerate(chips):
        progress("fit of sources", index, len(chips))
        sources[chip.name] = _fitted_source(chip)
    progress("fit of sources", len(chips), len(chips))
    rows: list[LeftOut] = []
    for chip in chips:
        others = [sources[other.name] for other in chips if other is not chip]
        rows += _left_out(chip, others, samples, seed)
    return LeaveOneOut(tuple(rows), tuple(sources.values()), samples, seed)


def draw(measurements: Sequence[Measurement], count: int, seed: int) -> NDArray[np.bool_]:
    """Which ``count`` of the measurements are drawn, spread evenly over sizes: one at random from each of as many
    equally long runs of the measurements sorted by arithmetic. Shape ``[measurements]``."""
    order = sorted(
        range(len(measurements)), key=lambda i: (measurements[i].operator.flops, measurements[i].operator.key)
    )
    generator = np.random.default_rng(seed)
    chosen = np.zeros(len(measurements), dtype=np.bool_)
    for run in np.array_split(np.array(order, dtype=np.int64), min(count, len(order))):
        chosen[generator.choice(run)] = True
    return chosen


def _chips(sets: Sequence[DeviceSet]) -> list[_Chip]:
    """Sets by chip, the board with most rows first; in the order of names."""
    by_chip: dict[tuple[str, int, int], list[DeviceSet]] = {}
    for measured, profile in sets:
        if profile.kind != GPU:
            continue  # nothing of it tells of a GPU
        sheet = profile.datasheet
        key = (profile.compute_capability, profile.sm_count, sheet.fp32_lanes_per_sm.value)
        by_chip.setdefault(key, []).append((_warm(measured), profile))
    chips = []
    for own in by_chip.values():
        rows: dict[str, int] = {}
        for measured, profile in own:
            rows[profile.name] = rows.get(profile.name, 0) + len(measured.measurements)
        if sum(rows.values()) < FEWEST_ROWS:
            continue
        profiles = {profile.name: profile for _, profile in own}
        names = sorted(profiles, key=lambda name: (-rows[name], name))
        chips.append(_Chip(tuple(profiles[name] for name in names), tuple(own)))
    return sorted(chips, key=lambda chip: chip.name)


def _warm(measured: MeasurementSet) -> MeasurementSet:
    return replace(measured, measurements=tuple(row for row in measured.measurements if not row.is_cold))


def _fitted_source(chip: _Chip) -> SourceDevice:
    samples = []
    for measured, profile in chip.sets:
        # No fit anywhere sees the held-out shapes: devices with these sources' values are judged on them.
        seen = [row for row in measured.measurements if not row.operator.is_held_out()]
        # Of short recordings every row.
        chosen = seen[:: _ROW_STEP if len(seen) > 300 else 1]
        if chosen:
            weight = default_weight(measured.header, [row.operator.kind for row in chosen])
            samples.append(OperatorSamples.of(measured, chosen, profile, weight))
    found = fit(samples, neutral(chip.profiles[0]), _ROUNDS)
    told = _told_by_data(found)
    if all(measured.header.includes_host_overhead for measured, _ in chip.sets):
        # Beside the host's overhead nobody can tell what a call costs on the device.
        told -= CALL
    if any(one.is_slowed for one in samples):
        # Without what its power limit allows, its efficiency would be taken for what the board reaches.
        told |= CAPS & NOT_TOLD
    given = {name: value for name, value in found.values.items() if name in told}
    return source_device(chip.profiles[0], [profile.name for profile in chip.profiles], given)


def _told_by_data(found: Fit) -> set[str]:
    """The parameters of which the data says more than the fit's prior does."""
    data = found.jacobian[: found.data_residuals, : len(GPU_SPACE.parameters)]
    prior = np.diagonal(found.jacobian[found.data_residuals :, : len(GPU_SPACE.parameters)])
    told = np.linalg.norm(data, axis=0) > np.abs(prior)
    return {parameter.name for parameter, is_told in zip(GPU_SPACE.parameters, told.tolist(), strict=True) if is_told}


def _left_out(chip: _Chip, sources: Sequence[SourceDevice], count: int, seed: int) -> list[LeftOut]:
    rows: list[LeftOut] = []
    for measured, profile in chip.sets:
        if not measured.measurements:
            continue
        guess = transferred(neutral(profile), sources)
        samples = OperatorSamples.of(measured, measured.measurements, profile, 1.0)
        keys = np.array([band_key(row.operator) for row in measured.measurements])
        zero_shot = _residuals(measured, samples, keys, guess)
        refined: dict[str, Residuals] = {}
        is_sampled = keys == SAMPLED_KIND
        if count and int(is_sampled.sum()) >= FEWEST_ROWS:
            seen = np.array([not row.operator.is_held_out() for row in measured.measurements])
            places = np.flatnonzero(is_sampled & seen)
            drawn = np.zeros(len(keys), dtype=np.bool_)
            drawn[places] = draw([measured.measurements[place] for place in places.tolist()], count, seed)
            few = replace(samples.where(drawn), weight=float(drawn.sum()))
            better = with_values(guess, refined_values(guess, few, sources))
            rest = is_sampled & ~drawn
            refined = {one.key: one for one in _residuals(measured, samples.where(rest), keys[rest], better)}
        rows += [LeftOut(chip.name, profile.name, one, refined.get(one.key)) for one in zero_shot]
    return rows


def _residuals(
    measured: MeasurementSet, samples: OperatorSamples, keys: NDArray[np.str_], profile: DeviceProfile
) -> list[Residuals]:
    """Device times beside the host's overhead, which is fitted to the fixed predictions."""
    predicted_us, _ = samples.predict(profile)
    overhead = fit_nuisances(samples, predicted_us)
    shown = ~hidden(samples, predicted_us, overhead)
    predicted_us, measured_us = device_times(samples, profile, overhead)
    return residuals_by_kind(measured.header.data_set, keys[shown].tolist(), predicted_us[shown], measured_us[shown])


def transfer_table(
    result: LeaveOneOut, date: str | None = None, concurrency: Concurrency | None = None
) -> TransferTable:
    """What ships: the sources, with the errors and bands of devices left out, and the parameters of concurrency."""
    zero_shot = [row.zero_shot for row in result.rows]
    refined = [row.refined for row in result.rows if row.refined is not None]
    sources = [
        one.model_copy(
            update={
                "peak_gflops_per_watt": float(f"{one.peak_gflops_per_watt:.4g}"),
                "values": {name: float(f"{value:.4g}") for name, value in one.values.items()},
            }
        )
        for one in result.sources
    ]
    return TransferTable(
        sources=sources,
        date=date,
        zero_shot=[one.summary() for one in zero_shot],
        refined=[one.summary() for one in refined],
        bands=bands_by_kind(zero_shot),
        refined_bands=bands_by_kind(refined),
        concurrency=concurrency,
    )


def _main() -> None:
    import datetime

    import yaml

    from iossim.measurements.data_sets import read_data_sets

    sets = read_data_sets().sets
    result = leave_one_out(sets, SHIPPED_SAMPLES, progress=lambda label, done, total: print(label, done, "of", total))
    for refined in (False, True):
        print("with samples:" if refined else "zero-shot:", result.errors(SAMPLED_KIND, refined))
    lender = device(CONCURRENCY_FROM)
    made = transfer_table(result, datetime.date.today().isoformat(), lent_by(lender))
    path = Path(iossim.devices.transfer.__file__).with_name("transfer.yaml")
    head = "# Made by: python -m iossim.calibration.leave_one_out\n"
    write_atomically(path, head + yaml.safe_dump(made.model_dump(exclude_none=True), sort_keys=False, width=118))
    print(f"wrote {path}")


if __name__ == "__main__":
    _main()
