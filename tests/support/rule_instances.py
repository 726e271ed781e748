"""A rule at concrete shapes, with both its sides as graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from iossim.ir.graph import Graph
from iossim.ir.types import DType
from iossim.transforms.rewriting.instance import InputShape, InputType, NotMadeError, place
from iossim.transforms.rewriting.rule import Rule


@dataclass(frozen=True)
class Instance:
    """``source`` and ``target`` compute, in the order of the rule's ``outputs``, what the rule says is equal.

    A ``*rest`` of tensors is the inputs ``rest.0``, ``rest.1``, ... of the graphs.
    """

    attributes: Mapping[str, Any]
    types: Mapping[str, InputType]
    source: Graph
    target: Graph


def instantiate(
    rule: Rule, attributes: Mapping[str, Any], shapes: Mapping[str, InputShape], dtype: DType = DType.FLOAT64
) -> Instance | None:
    """A rule with its attribute variables and the shapes of its inputs given; None where a side cannot take these, where the
    sides have other shapes, or where a condition fails.
    """
    try:
        placed = place(rule, attributes, shapes, dtype)
        return Instance(placed.attributes, placed.types, placed.source, placed.target())
    except NotMadeError:
        return None
