"""How far predictions are off measurements of a user's own: operators, stages, and networks measured as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iossim.calibration.prediction.bands import key_of
from iossim.calibration.recording import lowered
from iossim.calibration.validation.measured_networks import MeasuredEvaluation, evaluate_all
from iossim.calibration.validation.operators import OperatorEvaluation, evaluate_recording, held_out_fraction
from iossim.calibration.validation.stages import StageEvaluation, evaluate_stages
from iossim.hardware.profile import DeviceProfile
from iossim.measurements.data_sets import DataSets, read_data_sets
from iossim.search.scheduler import StartProgress, ignore

#: A quoted error is not questioned within this many points of per cent: overheads are fitted beside other predictions.
QUOTED_POINTS = 0.5


@dataclass(frozen=True)
class Validation:
    """What was evaluated, in the order of the data sets and devices."""

    #: An evaluation for each kind of operator of each data set.
    operators: tuple[OperatorEvaluation, ...] = ()
    #: Of the data sets that hold stages.
    stages: tuple[StageEvaluation, ...] = ()
    #: Networks that were measured as a whole, a file each.
    measured: tuple[MeasuredEvaluation, ...] = ()
    #: What was left out, and why.
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """JSON values; errors are fractions, times us."""
        return {
            "operators": [each.to_json() for each in self.operators],
            "stages": [each.to_json() for each in self.stages],
            "measured": [each.to_json() for each in self.measured],
            "notes": list(self.notes),
        }


def validate(
    places: Sequence[Path],
    profiles: Sequence[DeviceProfile] | None = None,
    progress: StartProgress = lambda label: ignore,
) -> Validation:
    """Judge predictions by the measurements in files and folders; raises OptionError or MeasurementError.

    Operators are judged on the shapes that no fit saw, told by their hash. ``profiles`` limits everything to these
    devices; otherwise each file is of the shipped device that it names.
    """
    data = read_data_sets(places, profiles)
    told = progress("operators")
    operators: list[OperatorEvaluation] = []
    for done, (measured, profile) in enumerate(data.sets):
        if measured.measurements:
            recording = lowered(measured, profile, held_out_fraction(profile))
            whole = evaluate_recording(recording, sum(row.is_cold for row in measured.measurements))
            operators += [whole.of_kind(*kind) for kind in whole.kinds]
        told(done + 1, len(data.sets))
    operators.sort(key=lambda each: each.device)
    stages = tuple(evaluate_stages(measured, profile) for measured, profile in data.sets if measured.stages)
    networks, said = evaluate_all(places, profiles, progress("measured networks"))
    notes = (*data.notes, *quoted_otherwise(operators, data), *said)
    return Validation(tuple(operators), stages, networks, notes)


def quoted_otherwise(operators: Sequence[OperatorEvaluation], data: DataSets) -> list[str]:
    """Where a profile quotes another error for a data set than was found now: the data or the model has changed."""
    profiles = {profile.name: profile for _, profile in data.sets}
    notes: list[str] = []
    for each in operators:
        (kind,) = each.kinds
        error = each.unseen.gpu_time().mean_error
        for quoted in profiles[each.device].provenance.held_out:
            if (quoted.data_set, quoted.kind) != (each.data_set, key_of(*kind)) or error is None:
                continue
            if abs(100 * error - quoted.mape_percent) > QUOTED_POINTS:
                notes.append(
                    f"the profile of {each.device} quotes an error of {quoted.mape_percent:.1f}% for {quoted.kind} of "
                    f"{each.data_set}; it is {100 * error:.1f}%"
                )
    return notes
