"""The files that optimize, compare and simulate write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.errors import OptionError

if TYPE_CHECKING:
    from iossim.cost.model import CostModel
    from iossim.execution.execution import Execution
    from iossim.execution.timeline import Span
    from iossim.ir.network import Network
    from iossim.reporting.figures.figure import Figure
    from iossim.schedule.schedule import Schedule

Writer = Callable[[Path], None]
#: What draws pictures: the module, and the package that has it.
_DRAWING = {"altair": "altair", "vl_convert": "vl-convert-python"}


def check_outputs(out: Path | None, trace: bool | None, plot: bool | None, cost_model: CostModel) -> None:
    """Refuse what cannot be written before the search starts."""
    from iossim.user_files import check_writable

    if out is None and (trace or plot):
        raise OptionError(f"{'--trace' if trace else '--plot'} needs a folder to write to; give --out DIR")
    if out is not None:
        check_writable(out)
    if (trace or plot) and not hasattr(cost_model, "timeline"):
        raise OptionError(
            f"cost model {cost_model.identity.name!r} knows no timeline to draw; use the simulator, or leave out "
            "--trace and --plot"
        )
    if plot:
        check_drawing()


def check_drawing() -> None:
    """Raise OptionError where a library that draws pictures is missing."""
    for name, package in _DRAWING.items():
        if find_spec(name) is None:
            raise OptionError(f"--plot needs {package}, which is not installed; pip install 'iossim[report]'")


def wants_plot(plot: bool | None) -> bool:
    """Pictures are drawn unless refused, where what draws them is installed."""
    return all(find_spec(name) is not None for name in _DRAWING) if plot is None else plot


def pictures(*figures: Figure) -> dict[str, Writer]:
    """Each figure as SVG and as PNG, under its name."""
    from iossim.reporting.figures.pictures import picture_files

    return picture_files(figures, "svg", "png", titled=True)


def schedule_files(
    network: Network,
    schedule: Schedule,
    cost_model: CostModel,
    trace: bool | None,
    plot: bool | None,
    sequential_us: float | None,
    execution: Execution | None = None,
) -> dict[str, Writer]:
    """schedule.json, graph.dot, and, where the cost model knows a timeline, trace.json and the timeline's picture.

    Trace and picture show ``execution``, where it is given, in place of the cost model's own timeline.
    """
    from iossim.reporting.dot import dot
    from iossim.user_files import write_atomically

    files: dict[str, Writer] = {
        "schedule.json": schedule.save,
        "graph.dot": lambda path: write_atomically(path, dot(network, schedule)),
    }
    if not hasattr(cost_model, "timeline"):
        return files
    spans: Sequence[Span] = cost_model.timeline(network, schedule) if execution is None else execution.spans
    if trace is not False:
        from iossim.reporting.perfetto_trace import perfetto_trace

        files["trace.json"] = lambda path: write_atomically(path, perfetto_trace(network, schedule, spans, execution))
    if wants_plot(plot):
        from iossim.reporting.figures.timeline import timeline_figure

        files |= pictures(timeline_figure(network, schedule, spans, sequential_us, execution))
    return files
