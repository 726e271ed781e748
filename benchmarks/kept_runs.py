"""Outputs of programs that tables of documents are made of; with a folder, each is kept there and is not run again."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import iossim

ROOT = Path(__file__).resolve().parents[1]
Rows = list[list[str]]
#: Boards as tables name them.
BOARDS = {
    "v100-sxm2": "V100",
    "a100-sxm-40gb": "A100",
    "a100-pcie-40gb": "A100",
    "h100-sxm": "H100",
    "t4": "T4",
    "c6678": "C6678",
}


class Runs:
    """Runs of programs and studies. ``folder`` keeps outputs: by the words of a command, and by the name of a study."""

    def __init__(self, folder: Path | None) -> None:
        self._temporary = TemporaryDirectory()
        self.folder = (folder or Path(self._temporary.name)).resolve()

    def output(self, *command: str) -> str:
        """Output of ``python COMMAND``, run from the root of the repository."""
        kept = self._place(*command)
        if not kept.exists():
            ran = subprocess.run([sys.executable, *command], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
            kept.write_text(ran.stdout, encoding="utf-8")
        return kept.read_text(encoding="utf-8")

    def has(self, *command: str) -> bool:
        """True where its output is kept."""
        return self._place(*command).exists()

    def _place(self, *command: str) -> Path:
        words = (Path(word).name if word.startswith("/") else word.replace("/", "-") for word in command)
        return self.folder / f"{'_'.join(words)}.out"

    def printed(self, *command: str, table: int = 0) -> Rows:
        """A Markdown table that it prints, the header first; ``table`` counts them from 0."""
        blocks = groupby(self.output(*command).splitlines(), lambda line: line.startswith("|"))
        lines = [list(block) for is_table, block in blocks if is_table][table]
        rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in lines]
        return [[BOARDS.get(cell, cell) for cell in row] for row in (rows[0], *rows[2:])]

    def json_lines(self, *command: str) -> list[dict[str, Any]]:
        """The JSON values that it prints, one a line."""
        return [json.loads(line) for line in self.output(*command).splitlines()]

    def study(self, name: str) -> dict[str, Any]:
        """Rows and answers of a study that ships."""
        results = self.folder / name / "results.json"
        if not results.exists():
            iossim.run_study(name, results.parent, resume=True)
        found: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
        return found
