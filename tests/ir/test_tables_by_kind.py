"""Tables by op kind: none names a kind that there is not, every kind has a price, and ``pytest -s`` prints what each lacks."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

import pytest

import iossim.ir.ops  # noqa: F401  registers every kind
from iossim.edge import access
from iossim.hardware.lowering import cpu, gpu
from iossim.ir.op import Op
from iossim.models.passes import elementwise_gradients, gradients  # noqa: F401  both register rules
from iossim.transforms.rewriting import symbolic_types

KINDS = frozenset(Op.registry)


def kinds_of(classes: Iterable[type[Op]]) -> frozenset[str]:
    return frozenset(each.kind for each in classes)


TABLES: dict[str, frozenset[str]] = {
    "prices on GPUs": frozenset(gpu.TARGET.families),
    "prices on CPUs": frozenset(cpu.TARGET.families),
    "gradients": kinds_of(gradients._RULES),
    "splits on edge devices": kinds_of(access._ACCESS),
    "shapes of rules": frozenset(symbolic_types._TYPINGS),
}


@pytest.mark.parametrize("title", TABLES)
def test_a_table_names_only_kinds_that_there_are(title: str) -> None:
    assert TABLES[title] <= KINDS
    lacks = ", ".join(sorted(KINDS - TABLES[title])) or "nothing"
    print(f"\n{title}: {len(TABLES[title])} of {len(KINDS)} kinds; lacks")
    print(textwrap.indent(textwrap.fill(lacks, 110), "  "))


@pytest.mark.parametrize("title", ["prices on GPUs", "prices on CPUs"])
def test_every_kind_has_a_price(title: str) -> None:
    assert TABLES[title] == KINDS
