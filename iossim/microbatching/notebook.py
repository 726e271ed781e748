"""Micro-batches in a notebook (:mod:`iossim.report.notebook`)."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from iossim.microbatching.kernels_under_limits import MicroBatching
from iossim.microbatching.words import micro_batch_table, total_words
from iossim.report.notebook import parts, records


@parts.register
def _(found: MicroBatching) -> list[str | Table]:
    return [total_words(found), micro_batch_table(found)]


@records.register
def _(found: MicroBatching) -> list[dict[str, Any]]:
    return [{**one.to_json(), "configuration": str(one.configuration)} for one in found.kernels]
