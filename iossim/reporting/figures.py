"""What all pictures share: the palette, and writing a figure whole, as SVG, PNG or PDF."""

from __future__ import annotations

import warnings
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from iossim.errors import OptionError
from iossim.user_files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The colours of Okabe and Ito (2008), told apart under all common kinds of colour blindness; grey for the rest.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442")
REST = "#999999"

_FORMATS = ("svg", "png", "pdf")


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """An empty figure that needs no display; raises OptionError where matplotlib is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise OptionError("pictures need matplotlib, which is not installed; pip install 'iossim[report]'") from None
    figure = Figure(figsize=(width_inches, height_inches), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: Path) -> None:
    """Write in the format of the path's ending: the same figure gives the same bytes."""
    kind = path.suffix.lstrip(".").lower()
    if kind not in _FORMATS:
        raise OptionError(
            f"cannot draw {path.name!r}: a picture is one of {', '.join('.' + name for name in _FORMATS)}"
        )
    from matplotlib import rc_context

    buffer = BytesIO()
    # Without a date and with a fixed salt an SVG is reproducible; its text stays text, to be found and selected.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    with rc_context({"svg.hashsalt": "iossim", "svg.fonttype": "none"}), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes in a PNG; an SVG keeps the text itself.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
    write_atomically(path, buffer.getvalue())
