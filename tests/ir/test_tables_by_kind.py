"""Tables by op kind: none names a kind that there is not, and ``pytest -s`` prints what each lacks."""

import textwrap
from collections.abc import Mapping
from importlib.util import find_spec

import pytest

from iossim.edge.access import ACCESS
from iossim.hardware.lowering import cpu, gpu
from iossim.ir.op import OPS, KindTable
from iossim.ir.ops.unary import Relu
from iossim.microbatching import elementwise_gradients  # noqa: F401  registers the rules of element-wise ops
from iossim.microbatching.gradients import RULES
from iossim.proving.symbolic_types import TYPINGS

KINDS = frozenset(OPS.own())
TABLES: dict[str, Mapping[str, object]] = {
    "prices on GPUs": gpu.TARGET.families,
    "prices on CPUs": cpu.TARGET.families,
    "gradients": RULES,
    "splits on edge devices": ACCESS,
    "shapes of rules": TYPINGS,
}
if find_spec("torch") is not None:
    from iossim.backends.torch_cuda.operators.registry import OPERATORS

    TABLES["functions in torch"] = OPERATORS


@pytest.mark.parametrize("title", TABLES)
def test_a_table_names_only_kinds_that_there_are(title: str) -> None:
    assert TABLES[title].keys() <= KINDS
    lacks = ", ".join(sorted(KINDS - TABLES[title].keys())) or "nothing"
    print(f"\n{title}: {len(TABLES[title])} of {len(KINDS)} kinds; lacks")
    print(textwrap.indent(textwrap.fill(lacks, 110), "  "))


def test_a_table_takes_kinds_by_name_or_class_and_has_none_for_others() -> None:
    table = KindTable[str]()
    assert table.register("conv", Relu)("known") == "known"
    assert [table.get(kind) for kind in ("conv", "relu", "add")] == ["known", "known", None]
