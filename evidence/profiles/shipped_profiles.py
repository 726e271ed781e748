"""Reproducible making of the fitted profiles that ship, from the shared tables, by one command.

``python -m evidence.profiles.shipped_profiles`` fits each chip with tables to all of them, and makes
``hardware/transfer.yaml`` in between: the chip with published networks comes first, since all others borrow from it.
Each fit begins at a device-independent point, so that the result does not depend on shipped profiles. Names of devices
make only those, ``bands`` the bands of Hopper's at today's prices, which changed after their fit, in half a minute;
``errors`` the errors on held-out shapes of all of them at today's prices, as ``validate`` finds them.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from statistics import fmean

from evidence.data.data_sets import own_measurements, read_data_sets, shared_data
from evidence.profiles.chips import PricedRows, all_rows, priced
from evidence.profiles.leave_one_out import CONCURRENCY_FROM, SHIPPED_SAMPLES, leave_one_out, write_transfer_table
from iossim.base.errors import OptionError, ignore
from iossim.calibration.accuracy import Residuals, bands_by_kind
from iossim.calibration.calibrate import FOLDS, DeviceData, Protocol, fit_profiles, uninformed
from iossim.calibration.recording import Recording
from iossim.calibration.validation import evaluate_by_kind, held_out_errors, lowered_sets
from iossim.hardware.load import device
from iossim.hardware.profile import with_values
from iossim.hardware.provenance import Band
from iossim.hardware.write import write_profile
from iossim.measurements.measurement import HELD_OUT_FRACTION
from iossim.measurements.measurement_set import DataSets

#: Folders of the shared data with tables of single operators in fp32.
FOLDERS = ("kernels", "kernels_direct", "framework_operators")
TRANSFER = "transfer"
BANDS, ERRORS = "bands", "errors"


@dataclass(frozen=True)
class Recipe:
    """Boards with one chip, which share their parameters; their ``published`` figures are fitted too.

    ``tables`` are in the shared data, ``own`` are measurements in the repository beside its profiles; bands know those
    ``judged`` besides.
    """

    boards: tuple[str, ...]
    published: bool = False
    tables: tuple[str, ...] = FOLDERS
    own: tuple[str, ...] = ()
    judged: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.boards[0]


RECIPES = (
    Recipe((CONCURRENCY_FROM, "v100-pcie-32gb"), published=True),
    Recipe(("a100-pcie-40gb", "a100-pcie-80gb")),
    Recipe(("p100-pcie-16gb",)),
    Recipe(("t4",)),
    Recipe(("p4",)),
    # The units of ``h200/report`` are excluded: many write slices of a concat's buffer, which their rows do not show.
    Recipe(
        ("h200-sxm", "h100-sxm"),
        tables=("graph_kernels/graph_products_bf16.csv", "h100_bf16/operators.csv"),
        own=tuple(f"h200/{name}.jsonl" for name in ("kernels", "pairs", "stages", "products")),
        judged=("graph_kernels/graph_attention_bf16.csv",),
    ),
)
#: Steps in order.
STEPS = (RECIPES[0].name, TRANSFER, *(recipe.name for recipe in RECIPES[1:]))


def make(recipe: Recipe, folder: Path, date: str, folds: int = 5) -> list[Path]:
    """Fit a recipe's boards and write their profiles into ``folder``; raises OptionError without the shared data."""
    places = [*_places(recipe.tables), *(own_measurements() / name for name in recipe.own)]
    boards = [uninformed(device(name)) for name in recipe.boards]
    sets = read_data_sets(places, boards).sets
    data = [DeviceData(board, tuple(one for one, of in sets if of is board)) for board in boards]
    protocol = Protocol(date, folds=folds, trusts_labels=True)
    found = fit_profiles(data, protocol, published=recipe.published)
    paths = []
    for profile in (found.profile, *found.sisters):
        paths.append(folder / f"{profile.name}.yaml")
        write_profile(profile, paths[-1])
    return paths


def make_transfer_table(date: str) -> Path:
    """Leave each chip out in turn, and write the table from which unmeasured devices take their parameters."""
    return write_transfer_table(leave_one_out(read_data_sets(_places()).sets, SHIPPED_SAMPLES), date)


def make_bands(recipe: Recipe, folder: Path, date: str) -> list[Path]:
    """Refit the bands of a recipe's boards to all rows, at the prices that ship, and their errors.

    The note says how many rows are inside the bands of other shapes.
    """
    rows = warm_rows(recipe)
    inside = [is_in for one, bands in by_other_shapes(rows) for is_in in one.inside(bands)]
    told = f"bands of {date}: {100 * fmean(inside):.0f}% of {len(inside)} rows are inside those of other shapes"
    return make_errors(recipe, folder, bands_by_kind(one.residuals for one in rows), told)


def make_errors(
    recipe: Recipe, folder: Path, bands: Mapping[str, list[Band]] | None = None, told: str = ""
) -> list[Path]:
    """Write the errors on held-out shapes at the prices that ship, as ``validate`` finds them, into the profiles of a
    recipe's boards; with refitted ``bands``, and what is ``told`` of these, if any.
    """
    found = evaluate_by_kind(lowered_sets(_data_sets(recipe), ignore))
    errors = [error for each in found for error in held_out_errors(each)]
    paths = [folder / f"{name}.yaml" for name in recipe.boards]
    for path, own in zip(paths, map(device, recipe.boards), strict=True):
        note = f"{own.provenance.note.split('; bands of ')[0]}; {told}" if told else own.provenance.note
        known = own.provenance.bands | dict(bands or {})
        write_profile(with_values(own, {}, bands=known, note=note, held_out=errors, cross_validated=[]), path)
    return paths


def warm_rows(recipe: Recipe) -> list[PricedRows]:
    """All rows of a recipe's boards but those with cold caches, at the prices that ship, kind by kind."""
    found: list[PricedRows] = []
    for measured, profile in _data_sets(recipe).sets:
        if warm := tuple(row for row in measured.measurements if not row.is_cold):
            recording = Recording.of(measured, profile, HELD_OUT_FRACTION, FOLDS, rows=warm)
            found += priced(recording, all_rows(recording), profile)
    return found


def by_other_shapes(rows: Sequence[PricedRows]) -> Iterator[tuple[Residuals, list[Band]]]:
    """Residuals with the bands of other shapes: each fifth of the shapes is left out in turn."""
    for fold in range(FOLDS):
        is_own = [one.recording.fold[one.places] == fold for one in rows]
        bands = bands_by_kind(one.residuals.where(~own) for one, own in zip(rows, is_own, strict=True))
        for one, own in zip(rows, is_own, strict=True):
            if one.residuals.key in bands:
                yield one.residuals.where(own), bands[one.residuals.key]


def _data_sets(recipe: Recipe) -> DataSets:
    """Everything that judges a recipe's boards."""
    places = [*_places((*recipe.tables, *recipe.judged)), *(own_measurements() / name for name in recipe.own)]
    return read_data_sets(places, [device(name) for name in recipe.boards])


def _places(tables: Sequence[str] = FOLDERS) -> list[Path]:
    places = [shared_data() / table for table in tables]
    missing = [str(place) for place in places if not place.exists()]
    if missing:
        raise OptionError(f"no shared tables at {', '.join(missing)}; name their folder with IOSSIM_SHARED")
    return places


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Make the fitted profiles that ship from the shared tables.")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)}; all of them by default")
    parser.add_argument("-o", dest="out", type=Path, help="folder of the profiles; that of those that ship by default")
    chosen = parser.parse_args(arguments)
    known = (*STEPS, BANDS, ERRORS)
    if unknown := sorted(set(chosen.steps) - set(known)):
        parser.error(f"no step {', '.join(unknown)}; there are {', '.join(known)}")
    folder = chosen.out or Path(str(resources.files("iossim.hw_profiles")))
    date = datetime.date.today().isoformat()
    makers: dict[str, Callable[[], list[Path]]] = {one.name: partial(make, one, folder, date) for one in RECIPES}
    makers[TRANSFER] = lambda: [make_transfer_table(date)]
    makers[BANDS] = partial(make_bands, RECIPES[-1], folder, date)
    makers[ERRORS] = lambda: [path for recipe in RECIPES for path in make_errors(recipe, folder)]
    for step in [name for name in known if name in (chosen.steps or STEPS)]:
        for path in makers[step]():
            print(f"wrote {path}", flush=True)


if __name__ == "__main__":
    main()
