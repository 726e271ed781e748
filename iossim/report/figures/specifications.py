"""Vega-Lite specifications by altair, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any

from iossim.base.errors import OptionError
from iossim.report.figures.figure import ROWS, LegendEntry
from iossim.report.scheduler_colours import scheduler_marks

if TYPE_CHECKING:
    import altair

#: Between two markers of one place, of the distance between places.
_DODGE = 0.07


def need_altair() -> Any:
    """The module; raises OptionError where it is not installed."""
    try:
        import altair
    except ImportError:
        raise OptionError("a report needs altair, which is not installed; pip install 'iossim[report]'") from None
    return altair


def specification(*layers: Any, height: Any, **resolve: str) -> dict[str, Any]:
    """Layers over one another, as wide as their container, on the records that whoever draws them gives."""
    alt = need_altair()
    chart: altair.LayerChart = alt.layer(*layers, data=alt.NamedData(ROWS)).properties(
        width="container", height=height
    )
    if resolve:
        chart = chart.resolve_scale(**resolve)
    # To check a specification takes altair as long as to make it; tests check those of each kind.
    spec: dict[str, Any] = chart.to_dict(validate=False)
    # Altair's own look; :mod:`iossim.report.figures.theme` has ours.
    spec.pop("config", None)
    return spec


def layer() -> Any:
    """An empty chart, to be given a mark and encodings; its data are those of the whole."""
    return need_altair().Chart()


def only(what: str) -> Any:
    """A layer of the records that are ``what``."""
    return layer().transform_filter(f"datum.what == '{what}'")


def scheduler_scale(schedulers: Sequence[str]) -> dict[str, list[str]]:
    """Domain and range of the colours of schedulers."""
    marks = scheduler_marks(schedulers)
    return {"domain": list(marks), "range": [colour for colour, _ in marks.values()]}


def shape_scale(schedulers: Sequence[str]) -> dict[str, list[str]]:
    """Domain and range of the shapes of schedulers."""
    marks = scheduler_marks(schedulers)
    return {"domain": list(marks), "range": [shape for _, shape in marks.values()]}


def scheduler_legend(schedulers: Sequence[str], lines: bool = False) -> tuple[LegendEntry, ...]:
    """What the colours of schedulers stand for; with ``lines`` their shapes too."""
    return tuple(
        LegendEntry(name, colour, shape if lines else "bar")
        for name, (colour, shape) in scheduler_marks(schedulers).items()
    )


def dodged(names: Sequence[object], name: object, others: Sequence[object], other: object) -> float:
    """Where a marker stands on an axis of names: at its name's number, but set a little beside those of ``others``."""
    return names.index(name) + _DODGE * (others.index(other) - (len(others) - 1) / 2)


def names_axis(key: str, title: str, names: Sequence[object]) -> Any:
    """The horizontal axis of places by :func:`dodged`, evenly spaced."""
    alt = need_altair()
    labels = ", ".join(f"'{name}'" for name in names)
    axis = alt.Axis(
        values=list(range(len(names))), labelExpr=f"[{labels}][datum.value]", grid=False, tickCount=len(names)
    )
    scale = alt.Scale(domain=[-0.5, len(names) - 0.5], nice=False, zero=False)
    return alt.X(f"{key}:Q", title=title, scale=scale, axis=axis)


def log_ticks(values: Iterable[float]) -> list[float]:
    """Places of ticks on a logarithmic axis: powers of ten, and 2 and 5 times those where there are few."""
    known = [value for value in values if value > 0]
    if not known:
        return []
    low, high = floor(log10(min(known))), ceil(log10(max(known)))
    steps = (1,) if high - low > 3 else (1, 2, 5)
    return [float(f"{step}e{power}") for power in range(low, high + 1) for step in steps]
