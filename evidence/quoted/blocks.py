"""Generated blocks of a document: between ``<!-- figures: NAME -->`` and ``<!-- end of figures -->``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evidence.quoted.texts import TEXTS, Results
from iossim.base.errors import IossimError, did_you_mean
from iossim.base.user_files import write_atomically

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parent / "figures.json"
_BLOCK = re.compile(
    r"^(?P<begin><!-- figures: (?P<name>[\w-]+) -->\n\n?)(?P<text>(?:(?!<!-- ).)*?)"
    r"(?P<end>\n\n?<!-- end of figures -->)$",
    re.MULTILINE | re.DOTALL,
)


class FiguresError(IossimError):
    """A document refers to missing figures."""


def documents() -> list[Path]:
    """Every document that may quote figures."""
    return [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]


def read_results() -> dict[str, Any]:
    """Stored results, by section."""
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


def write_results(results: Mapping[str, Any]) -> None:
    write_atomically(RESULTS, json.dumps(results, indent=1, ensure_ascii=False) + "\n")


def blocks(document: Path) -> Iterator[tuple[str, str]]:
    """Name and text of each block of a document, in order."""
    for found in _BLOCK.finditer(document.read_text(encoding="utf-8")):
        yield found["name"], found["text"]


def filled(text: str, results: Results, texts: Mapping[str, Callable[[Results], str]] = TEXTS) -> str:
    """A document's text with every block filled from the results; the rest is unchanged."""

    def fill(block: re.Match[str]) -> str:
        name = block["name"]
        if name not in texts:
            raise FiguresError(f"no figures are called {name!r}; {did_you_mean(name, texts)}")
        return f"{block['begin']}{texts[name](results)}{block['end']}"

    return _BLOCK.sub(fill, text)


def write_documents(results: Results) -> list[Path]:
    """Fill the blocks of all documents; returns the changed ones."""
    changed = []
    for document in documents():
        before = document.read_text(encoding="utf-8")
        after = filled(before, results)
        if after != before:
            write_atomically(document, after)
            changed.append(document)
    return changed
