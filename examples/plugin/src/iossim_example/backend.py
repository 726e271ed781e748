"""A backend: iossim's NumPy executor under another name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from iossim.backends.numpy_reference.backend import NumpyBackend
from iossim.execution.engine import Engine
from iossim.ir.types import Precision


def missing() -> str:
    return ""


def offers() -> list[str]:
    """Lines that ``iossim doctor`` prints of the backend."""
    return ["every op, in NumPy"]


def create(precision: Precision, engine: Engine, options: Mapping[str, str]) -> NumpyBackend:
    backend = NumpyBackend(precision, engine)
    backend.context = replace(backend.context, backend="example")
    return backend
