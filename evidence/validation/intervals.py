"""How often measurements are inside their intervals, and the factors of ``prediction/bands.yaml`` refitted.

Nine in ten measurements should be inside; a row's name says what its bands did not see. Where whole boards, chips or
networks were left out, each counts alike; elsewhere each measurement.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from math import exp, log
from statistics import fmean
from typing import Any

import numpy as np

from evidence.concurrency.hopper_operators import DEVICE, FOLDER, recorded
from evidence.data.data_sets import default_places, own_measurements, read_data_sets, read_measurements, shared_data
from evidence.profiles.chips import all_rows, chips, priced
from evidence.profiles.leave_one_out import LeftOut, leave_out_each
from evidence.profiles.shipped_profiles import RECIPES, by_other_shapes, warm_rows
from iossim.backends.simulator.cost_model import SimulatorCostModel
from iossim.base.compiled import Floats
from iossim.calibration.accuracy import Residuals, band_key, bands_by_kind
from iossim.calibration.recording import Recording, lowered
from iossim.calibration.validation import OperatorEvaluation, evaluate_recording, evaluate_stages, held_out_fraction
from iossim.execution.engine import Engine
from iossim.hardware.load import device
from iossim.hardware.provenance import Band
from iossim.ir.network import ModelSource
from iossim.ir.types import Precision
from iossim.measurements.measured_networks import find_measured_networks
from iossim.measurements.measurement import HELD_OUT_FRACTION
from iossim.models.load import load, load_source
from iossim.prediction.bands import band_at, families, unmeasured
from iossim.prediction.published import published_figures, without_network
from iossim.prediction.schedule_interval import NINE_OF_TEN, ScheduleErrors, stage_error
from iossim.schedule.schedule import AnySchedule
from iossim.search.assemble import reprice_any
from iossim.search.scheduler import schedule

V100, H200 = "v100-sxm2", "h200-sxm"
#: Tables of tensor cores that are not among the default ones.
_MORE = ("graph_kernels/graph_attention_bf16.csv", f"{FOLDER}/operators.csv")
#: A group of fewer measurements is not among those that count alike, or that a range is of.
FEWEST = 10
#: A schedule that is predicted to be faster by more than this should be so.
CLEAR = 0.04
#: For each measurement 1 if it is inside, and the logarithm of high over low, ``[rows, 2]``.
Judged = Floats
Groups = Mapping[str, Sequence[Judged]]
Inside = dict[str, float]


def judged_by(ratio: Floats, low: Floats | float, high: Floats | float) -> Judged:
    """Judged by measured over predicted, ``[rows]``, and the ends of its interval."""
    return np.array([(low <= ratio) & (ratio <= high), np.log(high / low) + np.zeros(len(ratio))]).T


def judged_by_bands(one: Residuals, bands: Sequence[Band], factor: float = 1.0) -> Judged:
    """Judged by bands, wider by a ``factor`` at either end."""
    low, high = np.array([(band.low, band.high) for band in (band_at(bands, us) for us in one.predicted_us.tolist())]).T
    return judged_by(one.measured_us / one.predicted_us, low / factor, high * factor)


def summary(groups: Groups, alike: bool = False) -> Inside:
    """Number of ``rows``; part ``inside`` in %, with the ``least`` and ``most`` of groups that are large enough;
    ``width``, high over low, with the ``narrowest`` and ``widest``. Those groups count ``alike``, or all by their rows.
    """
    found = [np.concatenate(several) for several in groups.values()]
    large = [one for one in found if len(one) >= FEWEST] or found
    counted = large if alike else found
    means, each = np.array([one.mean(axis=0) for one in counted]), np.array([one.mean(axis=0) for one in large])
    inside, width = np.average(means, axis=0, weights=None if alike else [len(one) for one in found])
    return {
        "rows": sum(map(len, counted)),
        "inside": 100 * float(inside),
        "least": 100 * float(each[:, 0].min()),
        "most": 100 * float(each[:, 0].max()),
        "width": exp(width),
        "narrowest": exp(each[:, 1].min()),
        "widest": exp(each[:, 1].max()),
    }


def _grouped(judged: Iterable[tuple[str, Judged]]) -> Groups:
    groups: dict[str, list[Judged]] = defaultdict(list)
    for name, one in judged:
        groups[name].append(one)
    return groups


def intervals() -> dict[str, Any]:
    """All that the page on accuracy says: what is ``inside``, the ``order`` of schedules, and the ``factors``."""
    places = [*default_places(), *(shared_data() / table for table in _MORE)]
    sets = [one for one in read_data_sets(places).sets if one[0].measurements]
    # The kernels of this project's backend are no library's.
    recordings = [lowered(*one, held_out_fraction(one[1])) for one in sets if "cupy" not in one[0].header.data_set]
    rows = [each for one in recordings for each in _by_key(evaluate_recording(one))]
    left_out = leave_out_each(chips(recordings)).rows
    known = ratios((each.device, key, each) for key, each in rows)
    foretold = ratios((row.device, row.kind, row.zero_shot) for row in left_out)
    on_hopper = ((one.key, judged_by_bands(one, bands)) for one, bands in by_other_shapes(warm_rows(RECIPES[-1])))
    wider = unmeasured()
    factors = {
        "new_chip": {"factor": least_factor(partial(chips_left_out, left_out))},
        "stored_otherwise": {"factor": least_factor(partial(stored_otherwise, rows))},
        **bands_of("tensor_cores", known),
        **bands_of("new_tensor_cores", known, foretold),
    }
    inside = {
        "operators in fp32 on five boards | their shapes": five_boards(rows),
        "operators on Hopper | their shapes": summary(_grouped(on_hopper)),
        "bf16 convolutions on the H100 | their network": convolutions(),
        "products on tensor cores | the board": boards_left_out(known["products"]),
        "convolutions on tensor cores | the board": boards_left_out(known["conv"]),
        "operators in fp32 of a chip without measurements | the chip": chips_left_out(left_out, wider["new_chip"]),
        "the same by the bands of others, no wider | the chip": chips_left_out(left_out, 1.0),
        "operators in 16 bits by bands of fp32 | the precision": stored_otherwise(rows, wider["stored_otherwise"]),
        **{f"gain by concurrency in fp32 on the H200, {name} | none": gains(name) for name in ("stages", "pairs")},
    }
    published, measured = list(published_runs()), list(measured_runs())
    orders = {"V100": Counter(order(published)), "H200": Counter(order(measured))}
    inside |= {
        "networks on the V100 | their network": summary({"": latencies(published)}),
        "networks in a graph on the H200 | every network": summary({"": latencies(measured)}),
        "the same, moved by the mean error of the others | every network": summary({"": moved(measured)}),
        "one schedule over another on the V100 | their network": summary({"": differences(published)}),
        "one schedule over another in a graph on the H200 | every network": summary({"": differences(measured)}),
    }
    return {"inside": inside, "order": orders | {"both": orders["V100"] + orders["H200"]}, "factors": factors}


def _by_key(each: OperatorEvaluation) -> Iterator[tuple[str, OperatorEvaluation]]:
    """The rows of each kind, by key of bands."""
    keys = np.array([band_key(row.operator) for row in each.measurements])
    yield from ((key, each[keys == key]) for key in sorted(set(keys.tolist())))


def _family(key: str) -> tuple[str, str]:
    """Family of kinds, and precision, of a key of bands; no precision if it is fp32."""
    kind, _, precision = key.partition(" ")
    return families().get(kind, (kind, ()))[0], precision


def five_boards(rows: Sequence[tuple[str, OperatorEvaluation]]) -> Inside:
    """Kinds in fp32 of the boards that were fitted before Hopper, on shapes that no fit saw."""
    fitted = {name for recipe in RECIPES[:-1] for name in recipe.boards}
    own = [(key, each.unseen) for key, each in rows if each.device in fitted and " " not in key]
    judged = ((f"{each.device} {key}", judged_by(each.measured_us, each.low_us, each.high_us)) for key, each in own)
    return summary({name: own for name, own in _grouped(judged).items() if sum(map(len, own))})


def convolutions() -> Inside:
    """Convolutions in bf16 of an H100 by the bands of other networks'; a shape of several networks counts in each."""
    shapes: dict[str, set[str]] = defaultdict(set)
    for one in recorded():
        shapes[one.network].add(one.operator.key)
    ((measured, profile),) = read_data_sets([shared_data() / FOLDER / "operators.csv"], [device(DEVICE)]).sets
    recording = Recording.of(measured, profile, HELD_OUT_FRACTION, 1)
    (own,) = (one for one in priced(recording, all_rows(recording), profile) if one.residuals.key == "conv bf16")
    keys = [measured.measurements[place].operator.key for place in own.places.tolist()]
    found = {}
    for name, those in shapes.items():
        if (is_its := np.array([key in those for key in keys])).any():
            bands = bands_by_kind([own.residuals.where(~is_its)])[own.residuals.key]
            found[name] = [judged_by_bands(own.residuals.where(is_its), bands)]
    return summary(found, alike=True)


def ratios(rows: Iterable[tuple[str, str, OperatorEvaluation | Residuals]]) -> dict[str, dict[str, Floats]]:
    """Measured over predicted on tensor cores, by family and board, of boards with enough rows."""
    found: dict[str, dict[str, list[Floats]]] = {name: defaultdict(list) for name in unmeasured()["tensor_cores"]}
    for board, key, one in rows:
        family, precision = _family(key)
        if precision and family in found:
            found[family][board].append(one.measured_us / one.predicted_us)
    joined = {family: {name: np.concatenate(own) for name, own in boards.items()} for family, boards in found.items()}
    return {family: {name: one for name, one in of.items() if len(one) >= FEWEST} for family, of in joined.items()}


def quantiles(boards: Sequence[Floats]) -> list[float]:
    """The 5th and the 95th percentile of the ratios of some boards, each board counting alike."""
    every, weights = np.concatenate(boards), np.concatenate([np.full(len(one), 1 / len(one)) for one in boards])
    order = np.argsort(every)
    ends = np.searchsorted(np.cumsum(weights[order]) / len(boards), [0.05, 0.95])
    return [round(float(every[order][end]), 2) for end in ends]


def bands_of(name: str, *found: Mapping[str, Mapping[str, Floats]]) -> dict[str, dict[str, float]]:
    """The band of each family that holds those of all that was ``found``; attention, measured on one chip, is no surer
    than the products that it is made of.
    """
    ends = {family: [quantiles(list(each[family].values())) for each in found] for family in found[0]}
    ends["attention"] += ends["products"]
    hulls = {family: (min(low for low, _ in own), max(high for _, high in own)) for family, own in ends.items()}
    return {f"{name}, {family}": {"low": low, "high": high} for family, (low, high) in hulls.items()}


def boards_left_out(boards: Mapping[str, Floats]) -> Inside:
    """Each board by the percentiles of the others."""
    ends = {name: quantiles([one for other, one in boards.items() if other != name]) for name in boards}
    return summary({name: [judged_by(ratio, *ends[name])] for name, ratio in boards.items()}, alike=True)


def chips_left_out(rows: Sequence[LeftOut], factor: float) -> Inside:
    """Kinds in fp32 of each chip as the others predict it, by the others' bands, wider by a ``factor``."""
    own = [row for row in rows if " " not in row.kind]
    bands = {
        chip: bands_by_kind(row.zero_shot for row in own if row.chip != chip) for chip in {row.chip for row in own}
    }
    judged = (
        (f"{row.zero_shot.data_set} {row.kind}", judged_by_bands(row.zero_shot, bands[row.chip][row.kind], factor))
        for row in own
        if row.kind in bands[row.chip]
    )
    return summary(_grouped(judged), alike=True)


def stored_otherwise(rows: Sequence[tuple[str, OperatorEvaluation]], factor: float) -> Inside:
    """Kinds on FP32 lanes in a precision that was not measured on their board, by bands of fp32."""
    more = factor / unmeasured()["stored_otherwise"]
    own = ((f"{each.device} {key}", each) for key, each in rows if _family(key)[1] and not _is_known(key, each.device))
    judged = ((name, judged_by(each.measured_us, each.low_us / more, each.high_us * more)) for name, each in own)
    return summary(_grouped(judged), alike=True)


def _is_known(key: str, board: str) -> bool:
    """True where a reduced precision has bands of its own: of the board, or of tensor cores."""
    kinds = {own.partition(" ")[0] for own in device(board).provenance.bands if " " in own}
    return _family(key)[0] in unmeasured()["tensor_cores"] or key.partition(" ")[0] in kinds


def least_factor(judged: Callable[[float], Inside]) -> float:
    """The least factor of bands, in steps of 0.05, by which nine in ten are inside."""
    steps = (round(1 + 0.05 * step, 2) for step in range(40))
    return next(factor for factor in steps if judged(factor)["inside"] >= 90)


def gains(name: str) -> Inside:
    """Gains of recorded stages in fp32 on the H200 over one stream, by the error of a stage alone."""
    profile = device(H200)
    found = evaluate_stages(read_measurements(own_measurements() / "h200" / f"{name}.jsonl"), profile).concurrent
    off = found.serial_us / found.latency_us / (found.predicted_serial_us / found.predicted_us)
    half = np.exp([NINE_OF_TEN * stage_error(profile, groups) for groups in found.groups.tolist()])
    return summary({name: [judged_by(off, 1 / half, half)]})


#: A schedule with what it took, us; and a network, the errors of its schedules, and these.
Timed = tuple[AnySchedule, float]
Runs = tuple[str, ScheduleErrors, list[Timed]]


def published_runs() -> Iterator[Runs]:
    """Networks on the V100, each by a fit without it where one saw it."""
    profile = device(V100)
    for row in (row for row in published_figures()["networks"] if row["device"] == V100):
        network = load(row["model"], batch=row["batch"])
        other = (without_network(profile, row["model"]) if row.get("fitted", True) else None) or profile
        prices = SimulatorCostModel(other, Precision.FP32)
        runs = list[Timed]((schedule(network, prices, name), 1e3 * ms) for name, ms in row["latency_ms"].items())
        yield row["model"], ScheduleErrors(network, other, prices), runs


def measured_runs() -> Iterator[Runs]:
    """Networks in a graph on the H200, which no fit saw."""
    found: dict[ModelSource, list[Timed]] = defaultdict(list)
    for run in (run for file in find_measured_networks([own_measurements()]) for run in file.runs):
        if run.schedule is not None and not run.wrong_outputs and run.engine == Engine.GRAPH:
            found[run.schedule.source.to_source()].append((run.schedule, run.median_us))
    for source, runs in found.items():
        network = load_source(source)
        prices = SimulatorCostModel(device(H200), network.precision, Engine.GRAPH, of_backend=True)
        priced_runs = [(reprice_any(one, network, prices), us) for one, us in runs]
        yield source.model, ScheduleErrors(network, prices.profile, prices), priced_runs


def latencies(found: Iterable[Runs], shifts: Mapping[str, float] | None = None) -> list[Judged]:
    """Latencies by their intervals, these multiplied by the network's ``shifts``."""
    judged: list[Judged] = []
    for model, errors, runs in found:
        for one, us in runs:
            interval = errors.interval(one)
            measured = np.array([us / shifts[model] if shifts else us])
            judged.append(judged_by(measured, interval.low_us, interval.high_us))
    return judged


def moved(found: Sequence[Runs]) -> list[Judged]:
    """Latencies by intervals that are moved by the mean error of the other networks, each of which counts alike."""
    off: dict[str, list[float]] = defaultdict(list)
    for model, _, runs in found:
        off[model] += [log(us / one.latency_us) for one, us in runs]
    others = {name: [fmean(each) for other, each in off.items() if other != name] for name in off}
    return latencies(found, {name: exp(fmean(means)) for name, means in others.items()})


def _pairs(found: Iterable[Runs]) -> Iterator[tuple[float, float, float]]:
    """Logarithms of the ratio of two schedules of a network, predicted and measured, and the noise of that."""
    for _, errors, runs in found:
        for (one, one_us), (other, other_us) in combinations(runs, 2):
            yield log(one.latency_us / other.latency_us), log(one_us / other_us), errors.noise(one, other)


def differences(found: Iterable[Runs]) -> list[Judged]:
    """Differences of two schedules by their noise."""
    return [judged_by(np.exp([us - about]), exp(-noise), exp(noise)) for about, us, noise in _pairs(found)]


def order(found: Iterable[Runs]) -> Iterator[str]:
    """Classes of each pair: its noise tells the two apart or they tie, and they differ clearly (by more than
    :data:`CLEAR`) or not; each class once more as right where the schedule that is predicted to be faster is so.
    """
    for predicted, measured, noise in _pairs(found):
        yield "pairs"
        for what in ("told" if abs(predicted) > noise else "ties", "clear" if abs(predicted) > CLEAR else "unclear"):
            yield from (what, f"{what} right")[: 1 + (predicted * measured > 0)]
