"""Benchmarks of kernels from a table of one's own, in JSON: rows by kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, RootModel, ValidationError

from iossim.base.errors import OptionError
from iossim.base.user_files import read_text
from iossim.base.values import Value, first_problem
from iossim.transforms.microbatching.configuration import BenchmarkRow


class _Row(Value):
    batch: Annotated[int, Field(ge=1)]
    algorithm: Annotated[str, Field(min_length=1)]
    time_us: Annotated[float, Field(gt=0)]
    workspace_bytes: Annotated[int, Field(ge=0)]


class BenchmarkTable(RootModel[dict[str, list[_Row]]]):
    """``{"conv2": [{"batch": 8, "algorithm": "fft", "time_us": 1.0, "workspace_bytes": 4096}, ...], ...}``."""


def read_table(path: Path) -> dict[str, tuple[BenchmarkRow, ...]]:
    """The rows of each kernel, in the order of the file; raises OptionError naming kernel, row and field."""
    try:
        read = BenchmarkTable.model_validate_json(
            read_text(path, "benchmarks", "give a JSON file of rows by kernel", OptionError)
        )
    except ValidationError as error:
        raise OptionError(f"benchmarks {path}: {first_problem(error)}") from None
    found = {}
    for kernel, rows in read.root.items():
        if not rows:
            raise OptionError(
                f"benchmarks {path}: kernel {kernel!r} has no rows; add one for each batch size and algorithm"
            )
        found[kernel] = tuple(
            BenchmarkRow(row.batch, row.algorithm, row.time_us, row.workspace_bytes) for row in rows
        )
    if not found:
        raise OptionError(f"benchmarks {path}: there is no kernel in it; give one a name and rows")
    return found
