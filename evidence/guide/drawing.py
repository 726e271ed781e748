"""An SVG that is read on a phone and on a desk, on a light and on a dark page.

A picture is 440 pixels wide with letters of 14, so that letters have 11 pixels on a screen of 390. A browser chooses
the colours by the scheme of the page around the picture.
"""

from __future__ import annotations

from html import escape

from iossim.report.colours import text_on
from iossim.report.figures.vega import PALETTE

WIDTH = 440
_STYLE = """
svg { --ink: #1b1f24; --soft: #59626c; --line: #7d8791; --faint: #c9ced4; --band: #eef1f4; --paper: #ffffff; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e8eaed; --soft: #b4bac2; --line: #8f98a2; --faint: #4a515a; --band: #262b33; --paper: #15181d; }
}
text { font: 14px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: var(--ink); }
.soft { fill: var(--soft); } .bold { font-weight: 650; } .middle { text-anchor: middle; } .end { text-anchor: end; }
.halo { paint-order: stroke; stroke: var(--paper); stroke-width: 5px; stroke-linejoin: round; }
.light { fill: #ffffff; } .dark { fill: #000000; }
.line { fill: none; stroke: var(--line); stroke-width: 1.4; } .faint { fill: none; stroke: var(--faint); }
.best { fill: none; stroke: var(--ink); stroke-width: 3.2; } .dashed { stroke-dasharray: 5 4; }
.paper { fill: var(--paper); } .band { fill: var(--band); } .sync { fill: var(--faint); }
.node { fill: var(--paper); stroke: var(--line); stroke-width: 1.4; } .chosen { stroke: var(--ink); stroke-width: 2.6; }
"""
#: Colour of each unit of the sample network, the same in every picture.
_COLOURS = dict(zip("abcd", PALETTE, strict=False))


def colour(unit: str) -> str:
    return _COLOURS.get(unit, "#8b939c")


class Drawing:
    """Marks one above the other, under a ``title`` for those who cannot see them."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._marks: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, paint: str, **more: str) -> None:
        """A rectangle in a colour (``#rrggbb``) or of a class of the style; ``more`` are attributes of SVG."""
        given = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
        painted = f'fill="{paint}"' if paint.startswith("#") else f'class="{paint}"'
        size = f'width="{width:.1f}" height="{height:.1f}"'
        self._marks.append(f'<rect x="{x:.1f}" y="{y:.1f}" {size} {painted}{given}/>')

    def text(self, x: float, y: float, text: str, style: str = "middle") -> None:
        self._marks.append(f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>')

    def named(self, x: float, y: float, width: float, height: float, text: str, unit: str) -> None:
        """A box in the colour of a unit with a text in its middle."""
        self.box(x, y, width, height, colour(unit), rx="4")
        self.label(x + width / 2, y + height / 2 + 5, text, unit)

    def label(self, x: float, y: float, text: str, unit: str) -> None:
        """A text on the colour of a unit."""
        self.text(x, y, text, f"middle {'light' if text_on(colour(unit)) == 'white' else 'dark'}")

    def curve(self, x0: float, y0: float, x1: float, y1: float, style: str = "line") -> None:
        """A curve that leaves downwards and arrives from above; a straight line below itself."""
        bend = (y1 - y0) / 2
        path = f"M{x0:.1f} {y0:.1f}C{x0:.1f} {y0 + bend:.1f} {x1:.1f} {y1 - bend:.1f} {x1:.1f} {y1:.1f}"
        self._marks.append(f'<path class="{style}" d="{path}"/>')

    def line(self, x0: float, y0: float, x1: float, y1: float, style: str = "line") -> None:
        self._marks.append(f'<path class="{style}" d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}"/>')

    def axis(self, y: float, left: float, scale: float, end_us: float, step_us: int) -> None:
        """A time axis of ``scale`` pixels a microsecond, from 0."""
        self.line(left, y, left + scale * end_us, y)
        for us in range(0, int(end_us) + 1, step_us):
            self.line(left + scale * us, y, left + scale * us, y + 5)
            self.text(left + scale * us, y + 20, f"{us} us" if us else "0", "middle soft")

    def svg(self, height: float) -> str:
        size = f'width="{WIDTH}" height="{height:g}" viewBox="0 0 {WIDTH} {height:g}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>',
                f"<title>{escape(self._title)}</title>",
                f"<style>{_STYLE}</style>",
                f'<rect class="paper" width="{WIDTH}" height="{height:g}" rx="8"/>',
                *self._marks,
                "</svg>\n",
            ]
        )
