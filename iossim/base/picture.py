"""Pictures that a notebook shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from iossim.base.errors import OptionError
from iossim.base.user_files import write_atomically


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
        write_atomically(Path(path), self.svg)
