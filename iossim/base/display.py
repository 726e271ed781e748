"""Display of values when printed and in a notebook: as text, as HTML, as a picture and as a data frame.

Values are on low floors and the code that draws them on a high one. So a value knows the drawing module by name only,
and imports it on first use.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from iossim.base.errors import OptionError

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as SVG, which a notebook shows."""

    svg: str

    def __repr__(self) -> str:
        return f"<Picture: SVG, {len(self.svg):,} characters>"

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> None:
        """Write the SVG to a file; raises OptionError for a name of another format."""
        if Path(path).suffix.lower() not in ("", ".svg"):
            raise OptionError(f"picture {str(path)!r} would be SVG; give it a name in .svg")
        from iossim.base.user_files import write_atomically

        write_atomically(Path(path), self.svg)


class Displayed:
    """A value that a notebook displays: by ``html``, ``text``, ``picture`` and ``records`` of
    :mod:`iossim.report.notebook`, where the module ``drawn_by`` says how this kind looks.
    """

    __slots__ = ()
    drawn_by: ClassVar[str] = "iossim.report.notebook"

    def _drawing(self) -> ModuleType:
        import_module(self.drawn_by)
        return import_module(Displayed.drawn_by)

    def _repr_html_(self) -> str:
        return str(self._drawing().html(self))

    def _repr_mimebundle_(
        self, include: Iterable[str] | None = None, exclude: Iterable[str] | None = None
    ) -> dict[str, str]:
        """The value as HTML and as text; as SVG if a front end asks for nothing else (``include``)."""
        made: dict[str, Callable[[], str]] = {
            "text/html": self._repr_html_,
            "text/plain": lambda: str(self),
            "image/svg+xml": lambda: self.plot().svg,
        }
        asked = set(include or ("text/html", "text/plain")) - set(exclude or ())
        return {kind: make() for kind, make in made.items() if kind in asked}

    def plot(self, **options: object) -> Picture:
        """The value as a picture: a network's graph, a schedule's timeline, a comparison's bars, a figure of a study.
        A schedule without a timeline in its prices is drawn as the graph, with stages as bands.

        A schedule takes ``network=`` if it cannot be loaded again, a study ``name=`` of a figure. Raises OptionError if
        a drawing library is not installed.
        """
        made: Picture = self._drawing().picture(self, **options)
        return made

    def to_dataframe(self) -> pandas.DataFrame:
        """A row for each unit, stage, launch, kernel, scheduler, or point and scheduler; columns are named with their
        units.

        Raises OptionError if pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise OptionError("a data frame needs pandas, which is not installed; pip install pandas") from None
        return pandas.DataFrame(self._drawing().records(self))


def counted(count: int, noun: str) -> str:
    """A number of things: ``1 stage``, ``1,200 launches``."""
    return f"{count:,} {noun}{('es' if noun.endswith('ch') else 's') * (count != 1)}"


class Printed(Displayed):
    """A value that prints as the tables and sentences of the command line, without colour; its ``repr`` is one line."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(self._drawing().text(self))

    def save(self, path: str | Path) -> None:
        """Write as JSON: ``to_json()``, where there is one, else the rows of :meth:`to_dataframe`."""
        from iossim.base.user_files import write_atomically

        made = self.to_json() if hasattr(self, "to_json") else self._drawing().records(self)
        write_atomically(Path(path), json.dumps(made, indent=1) + "\n")

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))
