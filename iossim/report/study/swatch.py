"""Small marks of the page: what stands for a colour in a legend, and verdicts that do not rest on colour alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iossim.report.figures.figure import LegendEntry

if TYPE_CHECKING:
    from markupsafe import Markup

_PATHS = {
    "bar": '<rect x="1" y="2" width="12" height="10" fill="{c}"/>',
    "line": '<path d="M0 7h14" stroke="{c}" stroke-width="2"/>',
    "circle": '<circle cx="7" cy="7" r="5" fill="{c}"/>',
    "square": '<rect x="2.5" y="2.5" width="9" height="9" fill="{c}"/>',
    "diamond": '<path d="M7 1l5 6-5 6-5-6z" fill="{c}"/>',
    "cross": '<path d="M5 1h4v4h4v4H9v4H5V9H1V5h4z" fill="{c}"/>',
    "triangle-up": '<path d="M7 1.5l6 11H1z" fill="{c}"/>',
    "triangle-down": '<path d="M7 12.5l6-11H1z" fill="{c}"/>',
    "triangle-right": '<path d="M12.5 7l-11 6V1z" fill="{c}"/>',
    "triangle-left": '<path d="M1.5 7l11 6V1z" fill="{c}"/>',
    "whisker": '<path d="M1 7h12" stroke="{c}" stroke-width="1.4"/>',
    "dashes": '<path d="M0 7h14" stroke="{c}" stroke-width="1.6" stroke-dasharray="4 3"/>',
    "bound": '<path d="M7 1v12" stroke="{c}" stroke-width="1.8"/>',
    "outline": '<rect x="1" y="2" width="12" height="10" fill="none" stroke="{c}" stroke-width="1.4"/>',
    "published": '<path d="M7 1l5 6-5 6-5-6z" fill="none" stroke="{c}" stroke-width="1.4"/>',
}


def swatch(entry: LegendEntry) -> Markup:
    """A legend's mark as inline SVG, which says nothing to a screen reader: its label stands beside it."""
    from markupsafe import Markup, escape

    drawn = _PATHS[entry.mark].format(c=escape(entry.colour))
    return Markup(f'<svg width="14" height="14" viewBox="0 0 14 14" aria-hidden="true">{drawn}</svg>')


def verdict(holds: bool | None, within_noise: bool = False) -> Markup:
    """Whether a claim holds: a sign, words and a colour that say the same."""
    from markupsafe import Markup

    if holds and within_noise:
        return Markup('<span class="verdict open">≈ within the noise</span>')
    kind, words = {True: ("holds", "✓ holds"), False: ("fails", "✗ does not hold"), None: ("open", "? cannot tell")}[
        holds
    ]
    return Markup(f'<span class="verdict {kind}">{words}</span>')
