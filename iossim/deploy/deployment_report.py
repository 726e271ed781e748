"""A deployment in words: the ways beside each other, the best of them, and the page in its folder."""

from __future__ import annotations

from collections.abc import Mapping

from iossim.base.display import counted
from iossim.deploy.check import SEQUENTIAL, STREAMS, DeploymentCheck
from iossim.deploy.folder import Deployment
from iossim.deploy.open_model import shapes_of, spelled
from iossim.deploy.runtime import WEIGHTS_FILE
from iossim.deploy.tensorrt import TensorRtAdvice
from iossim.ir.network import Network
from iossim.report.time_tables import disturbance
from iossim.schedule.schedule import AnySchedule, Schedule


def outputs_sentence(check: DeploymentCheck) -> str:
    """Largest deviation of the outputs of all ways from the model's own."""
    name, error = max(check.errors.items(), key=lambda item: item[1])
    if error == 0:
        return "All outputs equal the model's bit for bit."
    verdict = "equal" if check.equal else "DIFFER"
    return (
        f"Outputs {verdict}: those of {name!r} are off by {error:.1e} of the largest value (up to "
        f"{check.tolerance:.0e} is rounding)."
    )


def verdict(check: DeploymentCheck, width: int) -> str:
    """The fastest way, and whether ``width`` streams win."""
    best = check.best
    tie = f", a tie with {', '.join(map(repr, check.ties))}" if check.ties else ""
    fastest = f"Fastest: {best.name!r}, {best.samples.median_us / 1e3:.3f} ms{tie}."
    streams = next((row for row in check.rows if row.name == STREAMS), None)
    if streams is None:
        return f"{fastest} The schedule has a single stream."
    if streams is best or STREAMS in check.ties:
        return fastest
    factor = streams.samples.median_us / best.samples.median_us
    # ONNX Runtime's caller spins until all streams are done.
    lacking = f" (they need {width + 1} cores, one of them for the spinning caller; {check.cores} are available)"
    why = lacking if check.cores <= width else ""
    lose = f"{fastest} Streams take {factor:.2f} times as long{why}; do not use them on this machine."
    return " ".join(filter(None, (lose, _predicted_loss(check))))


def _predicted_loss(check: DeploymentCheck) -> str:
    """Sentence on whether the prediction said that streams lose to one thread; empty without a prediction."""
    predicted = {row.name: row.predicted_us for row in check.rows}
    streams_us, one_us = predicted.get(STREAMS), predicted.get(SEQUENTIAL)
    if streams_us is None or one_us is None:
        return ""
    took = {row.name: row.samples.median_us for row in check.rows}
    said = f"{streams_us / one_us:.2f} times as long as one thread, and measured {took[STREAMS] / took[SEQUENTIAL]:.2f}"
    return f"That was predicted: {said}." if streams_us >= one_us else f"The prediction was wrong: {said}."


def predicted_sentence(predicted_us: Mapping[str, float]) -> str:
    """Predicted times of one thread and, if there are any, of streams, for what was not run."""
    one_us, streams_us = predicted_us[SEQUENTIAL], predicted_us.get(STREAMS)
    said = f"Not run. Predicted: {one_us / 1e3:.3f} ms on one thread"
    return f"{said}." if streams_us is None else f"{said}, {streams_us / 1e3:.3f} ms with streams."


def check_json(check: DeploymentCheck) -> dict[str, object]:
    return {
        "rows": [row.to_json() for row in check.rows],
        "output_errors": dict(check.errors),
        "tolerance": check.tolerance,
        "equal": check.equal,
        "best": check.best.name,
        "ties": list(check.ties),
    }


def sizes_sentences(deployed: Deployment, network: Network) -> list[str]:
    """A sentence on the open dimensions of the deployed model; empty if the model's file leaves none open."""
    taken, reason = spelled(deployed.shapes), deployed.opened.reason
    if deployed.opened.shapes is not None:
        return [f"The deployed model takes {taken}; it is scheduled for {spelled(shapes_of(network.graph))}."]
    said = f"The deployed model takes {taken} alone: {reason}. Deploy it again for others (--batch 4)."
    return [said] if reason else []


def page(
    schedule: AnySchedule,
    deployed: Deployment,
    network: Network,
    check: DeploymentCheck | None,
    predicted_us: Mapping[str, float],
) -> str:
    """README.md of a deployed folder."""
    width = len(deployed.streams)
    counts = " and ".join(str(len(names)) for names in deployed.streams)
    stages = f", {counted(len(schedule.stages), 'stage')}" if isinstance(schedule, Schedule) else ""
    weights = f" Its weights are in `{WEIGHTS_FILE}`." if (deployed.folder / WEIGHTS_FILE).exists() else ""
    others = "" if deployed.opened.shapes is None else ", `python run.py NAME=4x3x224x224` at other sizes"
    lines = [
        f"# {schedule.network} on ONNX Runtime, {counted(width, 'stream')}",
        "",
        f"`python run.py` runs it{others}; copy `session()` from there.",
        f"`model.onnx` is the model as ONNX Runtime optimised it for {deployed.provider.name}: load it with",
        f"optimisation off, on a machine like the one that wrote it.{weights}",
        f"`partition.json` has the names of its nodes by stream ({counts} {'node' if counts == '1' else 'nodes'}).",
        f"Schedule: {schedule.scheduler}, for {schedule.device}, batch {network.source.batch}{stages}.",
        *sizes_sentences(deployed, network),
        "",
    ]
    if check is None:
        lines.append(predicted_sentence(predicted_us))
    else:
        busy = disturbance(check.rows)
        lines += [outputs_sentence(check), verdict(check, width), *([f"Note: {busy}."] if busy else [])]
    return "\n".join(lines) + "\n"


def tensorrt_sentences(advice: TensorRtAdvice, model: str) -> list[str]:
    """Settings that TensorRT accepts, and what to look for in its profile."""
    said = [
        "TensorRT takes no schedule: its builder decides which layers run concurrently, up to a number of "
        "auxiliary streams. For the width of this schedule:",
        f"  {advice.command(model)}",
    ]
    if not advice.stages:
        return [*said, "The schedule has no concurrent groups, so no layers should overlap."]
    said.append("Layers of these nodes should overlap in its profile, a group a line:")
    for stage, groups in advice.stages.items():
        said += [f"  stage {stage}", *(f"    {' > '.join(names)}" for names in groups)]
    return said
