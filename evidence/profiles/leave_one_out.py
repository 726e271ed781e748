"""Errors of predictions for unseen devices: each calibrated chip in turn is left out, and predicted from the others.

A chip's sources are fitted here, from a device-independent starting point, so that they contain nothing of the chip
left out; of shipped profiles only the datasheet facts are used. Boards with the same chip (by compute capability and
SMs) are one source, and left out together. Chips with few rows are no sources, but judged by all of them.

Tensor cores have one set of parameters for all generations, except those that no generations share: their rows are
judged by that set fitted to all other chips' rows, with the exceptions taken from the nearest generation among them.

:mod:`evidence.profiles.shipped_profiles` rebuilds ``iossim/hardware/transfer.yaml``, with the sources, errors and bands
found here, and the launch costs from the profile of the one device with published networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

import iossim.hardware.transfer
from evidence.profiles.chips import (
    Chip,
    DeviceSet,
    PricedRows,
    all_rows,
    chips,
    fit_lanes,
    fit_tensor_cores,
    on_lanes,
    priced,
)
from iossim.base.compiled import Floats
from iossim.base.errors import Progress, ignore
from iossim.base.user_files import write_atomically
from iossim.calibration.accuracy import Residuals, bands_by_kind
from iossim.calibration.concurrency_fit import lent_by
from iossim.calibration.fit import Fit
from iossim.calibration.nuisances import NOT_TOLD, facts_of, neutral
from iossim.calibration.recording import Recording, lowered
from iossim.calibration.samples_refinement import refined_values, source_device
from iossim.hardware.fits import GPU_SPACE, TENSOR_SPACE, ParameterSpace
from iossim.hardware.kind import device_kind
from iossim.hardware.load import device
from iossim.hardware.parameters import CALL, ModelParameters
from iossim.hardware.profile import DeviceProfile, with_values
from iossim.hardware.transfer import CAPS, Concurrency, SourceDevice, TransferTable, transferred_values
from iossim.measurements.measurement import Measurement

Mask = NDArray[np.bool_]

#: Number of samples for the shipped errors.
SHIPPED_SAMPLES = 20
#: Chips with fewer rows than this are no sources; of kinds with fewer, no samples are drawn.
FEWEST_ROWS = 100
#: The one device with published networks, whose launch costs all other GPUs take.
CONCURRENCY_FROM = "v100-sxm2"
#: Tensor cores' parameters that differ between generations, which other generations do not determine.
_BY_GENERATION = frozenset(
    name
    for name in TENSOR_SPACE.names
    if name in ModelParameters.model_fields
    and len({getattr(one, name) for one in device_kind("gpu").parameters.values()}) > 1
)
_SHARED_TENSOR_SPACE = ParameterSpace(
    tuple(parameter for parameter in TENSOR_SPACE.parameters if parameter.name not in _BY_GENERATION)
)
#: The one of them that depends on the process.
_TENSOR_RATE = "tensor_sustained_gflops_per_watt"


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Predictions of one kind of operators in a data set of a device that was left out.

    ``refined`` are those by a profile that samples of this kind refined, without these; None without samples.
    """

    #: The chip left out, by the name of its best measured board, and the board of these rows.
    chip: str
    device: str
    zero_shot: Residuals
    refined: Residuals | None = None
    #: The rows themselves, of both, if kept.
    priced: PricedRows | None = None
    refined_rows: PricedRows | None = None

    @property
    def kind(self) -> str:
        return self.zero_shot.key


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """All devices left out in turn; ``samples`` is the number that refined each, drawn by ``seed``."""

    rows: tuple[LeftOut, ...]
    #: Every chip with enough rows, as a source for the others.
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

    def to_json(self) -> dict[str, Any]:
        """Accuracies of all kinds of all devices, as JSON values."""
        rows = [
            {
                "device": row.device,
                "data_set": row.zero_shot.data_set,
                "kind": row.kind,
                "zero_shot": row.zero_shot.accuracy.to_json(),
                "refined": None if row.refined is None else row.refined.accuracy.to_json(),
            }
            for row in self.rows
        ]
        return {"samples": self.samples, "left_out": rows}


def leave_one_out(sets: Sequence[DeviceSet], samples: int = 0) -> LeaveOneOut:
    """Predict each chip from all others: from datasheet facts, and with ``samples`` of each of its kinds.

    Takes some twenty seconds per chip. Raises ValueError if fewer than two chips have enough rows.
    """
    return leave_out_each(chips([lowered(*one) for one in sets]), samples)


def leave_out_each(found: Sequence[Chip], samples: int = 0, seed: int = 0, progress: Progress = ignore) -> LeaveOneOut:
    """Leave out each of the chips, whose operators are lowered already."""
    sources: dict[str, SourceDevice] = {}
    able = [chip for chip in found if sum(int(on_lanes(one).sum()) for one in chip.recordings) >= FEWEST_ROWS]
    if len(able) < 2:
        raise ValueError(f"{len(able)} chips with {FEWEST_ROWS} rows and more: at least 2 are needed to leave one out")
    steps = len(able) + len(found)
    for index, chip in enumerate(able):
        progress(index, steps)
        sources[chip.name] = _fitted_source(chip)
    rows: list[LeftOut] = []
    for index, chip in enumerate(found):
        progress(len(able) + index, steps)
        others = [one for one in found if one is not chip]
        known = [sources[other.name] for other in others if other.name in sources]
        rows += _left_out(chip, known, _tensor_values(chip, others), samples, seed)
    progress(steps, steps)
    return LeaveOneOut(tuple(rows), tuple(sources.values()), samples, seed)


def draw(measurements: Sequence[Measurement], count: int, seed: int) -> NDArray[np.bool_]:
    """Mask of ``count`` drawn measurements, spread evenly over sizes: one at random from each of as many equally long
    runs of the measurements sorted by arithmetic. Shape ``[measurements]``.
    """
    order = sorted(
        range(len(measurements)), key=lambda i: (measurements[i].operator.flops, measurements[i].operator.key)
    )
    generator = np.random.default_rng(seed)
    chosen = np.zeros(len(measurements), dtype=np.bool_)
    for run in np.array_split(np.array(order, dtype=np.int64), min(count, len(order))):
        chosen[generator.choice(run)] = True
    return chosen


def _fitted_source(chip: Chip) -> SourceDevice:
    found = fit_lanes(chip, all_rows)
    assert found is not None, "it has rows enough"
    told = _told_by_data(found.found)
    if all(one.measured.header.includes_host_overhead for one in found.recordings):
        # The dispatch cost on the device is indistinguishable from the host's overhead.
        told -= CALL
    if found.is_slowed:
        # Without the limit by its power, its efficiency would be mistaken for the board's rate.
        told |= CAPS & NOT_TOLD
    given = {name: value for name, value in found.found.values.items() if name in told}
    return source_device(chip.profiles[0], [profile.name for profile in chip.profiles], given)


def _told_by_data(found: Fit) -> set[str]:
    """Parameters that the data determines more than the fit's prior."""
    data = found.jacobian[: found.data_residuals, : len(GPU_SPACE.parameters)]
    prior = np.diagonal(found.jacobian[found.data_residuals :, : len(GPU_SPACE.parameters)])
    told = np.linalg.norm(data, axis=0) > np.abs(prior)
    return {parameter.name for parameter, is_told in zip(GPU_SPACE.parameters, told.tolist(), strict=True) if is_told}


def _tensor_values(chip: Chip, others: Sequence[Chip]) -> dict[str, float]:
    """Tensor cores' parameters for a chip, from the rows of the others; none if it has no rows of tensor cores
    itself.
    """
    having = [other for other in others if _has_tensor_rows(other)]
    if not having or not _has_tensor_rows(chip):
        return {}
    own = chip.profiles[0]
    sources = [
        source_device(profile, fitted=_of_generation(profile, 1.0 / facts_of(profile).process_gain))
        for profile in (other.profiles[0] for other in having)
    ]
    values = transferred_values(facts_of(own), sources)
    values[_TENSOR_RATE] *= facts_of(own).process_gain
    values = {name: values[name] for name in sorted(_BY_GENERATION)}
    recordings = [one for other in having for one in other.recordings]
    found = fit_tensor_cores(recordings, all_rows, having[0].profiles[0], _SHARED_TENSOR_SPACE)
    return values | ({} if found is None else found.found.values)


def _has_tensor_rows(chip: Chip) -> bool:
    return not all(on_lanes(one).all() for one in chip.recordings)


def _of_generation(profile: DeviceProfile, factor: float) -> dict[str, float]:
    """Parameters specific to tensor cores of the profile's generation; the rate that power sustains is scaled by
    ``factor``.
    """
    theirs = profile.device_kind.default_parameters(profile.compute_capability)
    values = {name: float(getattr(theirs, name)) for name in sorted(_BY_GENERATION)}
    return values | {_TENSOR_RATE: factor * values[_TENSOR_RATE]}


def transferred(profile: DeviceProfile, sources: Sequence[SourceDevice]) -> DeviceProfile:
    """The profile with the parameters that sources suggest; its provenance is unchanged."""
    return with_values(profile, transferred_values(facts_of(profile), sources))


def _left_out(
    chip: Chip, sources: Sequence[SourceDevice], tensor_values: dict[str, float], count: int, seed: int
) -> list[LeftOut]:
    rows: list[LeftOut] = []
    for one in chip.recordings:
        guess = with_values(transferred(neutral(one.profile), sources), tensor_values)
        refined: dict[str, PricedRows] = {}
        keys, lanes = np.array(one.keys), on_lanes(one)
        for key in sorted(set(one.keys)) if count else ():
            own = (keys == key) & lanes
            if own.sum() >= FEWEST_ROWS:
                drawn = _drawn(one, own & one.seen, count, seed)
                few = replace(one.where(drawn), weight=float(drawn.sum()))
                better = with_values(guess, refined_values(guess, few, sources))
                # It is None if the host hides every row.
                refined.update((rows_of.residuals.key, rows_of) for rows_of in priced(one, own & ~drawn, better))
        for each in priced(one, all_rows(one), guess):
            better_rows = refined.get(each.residuals.key)
            residuals = None if better_rows is None else better_rows.residuals
            rows.append(LeftOut(chip.name, one.profile.name, each.residuals, residuals, each, better_rows))
    return rows


def _drawn(recording: Recording, chosen: Mask, count: int, seed: int) -> Mask:
    """Mask of the rows drawn (see :func:`draw`) from the chosen ones, ``[rows]``."""
    places = np.flatnonzero(chosen)
    rows = recording.measured.measurements
    drawn = np.zeros_like(chosen)
    drawn[places] = draw([rows[place] for place in places.tolist()], count, seed)
    return drawn


def transfer_table(
    result: LeaveOneOut, date: str | None = None, concurrency: Concurrency | None = None
) -> TransferTable:
    """The table to ship: the sources, errors and bands of left-out devices, and the parameters of concurrency."""
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


def write_transfer_table(result: LeaveOneOut, date: str) -> Path:
    """Write ``iossim/hardware/transfer.yaml``, from which devices without measurements take their parameters."""
    made = transfer_table(result, date, lent_by(device(CONCURRENCY_FROM)))
    path = Path(iossim.hardware.transfer.__file__).with_name("transfer.yaml")
    head = "# Made by: python -m evidence.profiles.shipped_profiles\n"
    write_atomically(path, head + yaml.safe_dump(made.model_dump(exclude_none=True), sort_keys=False, width=118))
    iossim.hardware.transfer.transfer_table.cache_clear()
    return path
