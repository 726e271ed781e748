"""Dataflow on edge devices as functions of :mod:`iossim.related`."""

from iossim.edge.distributed import distributed as distribute
from iossim.edge.planned import dataflow

__all__ = ["dataflow", "distribute"]
