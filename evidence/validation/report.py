"""Complete evaluation: operators, networks (published, and measured), both engines and unseen devices, in one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from evidence.concurrency.tables import concurrency_data
from evidence.data.data_sets import default_places, read_data_sets
from evidence.profiles.chips import chips
from evidence.profiles.leave_one_out import LeaveOneOut, leave_out_each
from evidence.validation.concurrency import ConcurrencyEvaluation, evaluate_concurrency
from evidence.validation.engines import DEVICES, NETWORK, EngineAgreement, compare_prices
from evidence.validation.networks import NetworkEvaluation, evaluate_networks, published_devices
from evidence.validation.published_models import FamilyErrors, family_errors
from evidence.validation.roofline import roofline_us
from evidence.validation.sm_shares import ShareEvaluation, evaluate_shares
from evidence.validation.splits import SplitRows, split_by_device, split_by_size
from iossim.base.errors import OptionError, StartProgress, did_you_mean, silent
from iossim.calibration.evaluated_networks import MeasuredEvaluation, evaluate_all
from iossim.calibration.validation import Validation, evaluate_by_kind, evaluate_stages, lowered_sets, quoted_otherwise
from iossim.hardware.load import device
from iossim.hardware.profile import DeviceProfile
from iossim.measurements.measurement_set import DataSets
from iossim.models.load import load

PARTS = ("operators", "networks", "measured", "concurrency", "shares", "engines")
#: Ways of holding operators out; quickly by hashes alone.
SPLITS = ("hash", "size", "device")
#: Stages of each device that a quick comparison of the engines prices.
QUICK_STAGES = 300
#: Batches of networks on shares of a device that a quick comparison prices.
QUICK_BATCHES = (1, 8, 32)
SEED = 0
#: Measurements of an unseen device that refine a transfer to it.
TRANSFER_SAMPLES = 20


@dataclass(frozen=True)
class ValidationReport(Validation):
    """Result of an evaluation, in the order of the data sets and devices; parts not requested are empty."""

    networks: tuple[NetworkEvaluation, ...] = ()
    #: Kernels that were measured concurrently, one folder of tables each.
    concurrency: tuple[ConcurrencyEvaluation, ...] = ()
    #: Kernels and networks on parts of a device, one folder of tables each.
    shares: tuple[ShareEvaluation, ...] = ()
    engines: tuple[EngineAgreement, ...] = ()
    #: Each chip with data predicted from the others.
    transfer: LeaveOneOut | None = None
    #: Operators held out by size and by device.
    splits: tuple[SplitRows, ...] = ()

    @cached_property
    def families(self) -> tuple[FamilyErrors, ...]:
        """Families of operators beside the published errors of another model."""
        return family_errors(self.operators, self.splits)

    def to_json(self) -> dict[str, Any]:
        """JSON values; errors and differences are fractions, times us."""
        parts = ("networks", "concurrency", "shares", "engines", "splits", "families")
        own = {name: [each.to_json() for each in getattr(self, name)] for name in parts}
        return super().to_json() | own | {"transfer": self.transfer and self.transfer.to_json()}


def validate(
    profiles: Sequence[DeviceProfile] | None = None,
    places: Sequence[Path] | None = None,
    parts: Sequence[str] | None = None,
    quick: bool = False,
    progress: StartProgress = silent,
    splits: Sequence[str] | None = None,
) -> ValidationReport:
    """Recompute every figure; raises OptionError or MeasurementError for unusable input.

    ``profiles`` limits all parts to these devices; ``places`` are files and folders of measurements, by default
    :func:`~evidence.data.data_sets.default_places`; ``parts`` are of :data:`PARTS`, by default all. ``splits`` are of
    :data:`SPLITS`, by default all. ``quick`` samples the stages that both engines price, and holds operators out by
    their hash alone unless other splits are requested.
    """
    parts = PARTS if parts is None else parts
    if splits is None:
        splits = SPLITS[:1] if quick else SPLITS
    for option, given, known in (("part", parts, PARTS), ("split", splits, SPLITS)):
        for name in given:
            if name not in known:
                raise OptionError(f"`{option}` {name!r} is not known; {did_you_mean(name, known)}")
    found = ValidationReport()
    if "operators" in parts:
        found = _operators(read_data_sets(places, profiles), splits, progress)
    notes = list(found.notes)
    networks = [
        evaluate_networks(profile, progress=progress(f"networks on {profile.name}"))
        for profile in (_profiles(profiles, published_devices()) if "networks" in parts else ())
    ]
    measured: tuple[MeasuredEvaluation, ...] = ()
    if "measured" in parts:
        where = default_places() if places is None else places
        measured, said = evaluate_all(where, profiles, progress("measured networks"))
        notes += said
    folders = [concurrency_data()] if places is None else places
    side_by_side: list[ConcurrencyEvaluation] = []
    if "concurrency" in parts:
        told = progress("kernels side by side")
        for folder in folders:
            judged_together, said = evaluate_concurrency(folder, profiles, told)
            side_by_side += [judged_together] if judged_together else []
            notes += said if places is None else ()
    shares: list[ShareEvaluation] = []
    if "shares" in parts:
        told = progress("parts of devices")
        shares = [evaluate_shares(folder, profiles, QUICK_BATCHES if quick else None) for folder in folders]
        told(1, 1)
    engines = [
        compare_prices(
            load(NETWORK),
            profile,
            QUICK_STAGES if quick else None,
            SEED,
            progress=progress(f"engines on {profile.name}"),
        )
        for profile in (_profiles(profiles, DEVICES) if "engines" in parts else ())
    ]
    return replace(
        found,
        networks=tuple(networks),
        measured=measured,
        concurrency=tuple(side_by_side),
        shares=tuple(filter(None, shares)),
        engines=tuple(engines),
        notes=tuple(notes),
    )


def _operators(data: DataSets, splits: Sequence[str], progress: StartProgress) -> ValidationReport:
    """Operators and stages of data sets, with the notes on these."""
    recordings = lowered_sets(data, progress("operators"))
    by_hash = evaluate_by_kind(recordings, roofline_us) if "hash" in splits else []
    notes = [*data.notes, *quoted_otherwise(by_hash, data)]
    found = chips(recordings)
    rows: list[SplitRows] = []
    if "size" in splits:
        rows += split_by_size(found, progress("largest operators"))
    transfer = None
    if "device" in splits:
        try:
            transfer = leave_out_each(found, TRANSFER_SAMPLES, SEED, progress("devices left out"))
            rows += split_by_device(transfer)
        except ValueError as error:
            # A single device has no source to transfer from.
            notes.append(f"no transfer to unseen devices: {error}")
    stages = tuple(evaluate_stages(measured, profile) for measured, profile in data.sets if measured.stages)
    return ValidationReport(tuple(by_hash), stages, notes=tuple(notes), transfer=transfer, splits=tuple(rows))


def _profiles(chosen: Sequence[DeviceProfile] | None, names: Sequence[str]) -> list[DeviceProfile]:
    if chosen is None:
        return [device(name) for name in names]
    return [profile for profile in chosen if profile.name in names]
