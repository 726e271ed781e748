"""What does not work, each in its own way."""

from __future__ import annotations

from typing import Any

from iossim.cost.model import CostModel, CostModelIdentity, Prices
from iossim.cost.random import RandomCostModel
from iossim.ir.network import Network
from iossim.ir.op import Op
from iossim.schedule.batch import StageBatch
from iossim.schedule.schedule import Schedule
from iossim.search.options import SearchOptions
from iossim.search.unsearched import sequential


def create(*arguments: object) -> object:
    raise RuntimeError("the licence server\nis down")


def profile() -> str:
    return "name: broken-gpu\ntitle: no facts\n"


def rules() -> str:
    return "rule: a\nsource: [y]\noutputs: {y: x}\n"


def output(*arguments: object) -> object:
    return 7


class Miscounted(Op, kind="miscounted", priced_as="foreign", compute=lambda _, x: x):
    flops = create


class Merging(RandomCostModel):
    """Prices of all stages but merged ones."""

    @property
    def identity(self) -> CostModelIdentity:
        return CostModelIdentity("merging-costs")

    def price_stages(self, batch: StageBatch) -> Prices:
        if batch.merged.any():
            raise ZeroDivisionError("none")
        return super().price_stages(batch)


def merging(*arguments: object) -> Merging:
    return Merging()


class Short(RandomCostModel):
    """One price, however many stages there are."""

    @property
    def identity(self) -> CostModelIdentity:
        return CostModelIdentity("short-costs")

    def price_stages(self, batch: StageBatch) -> Prices:
        return super().price_stages(batch)[:1]


def short(*arguments: object) -> Short:
    return Short()


def hasty(network: Network, prices: CostModel, options: SearchOptions, *given: Any) -> Schedule:
    found = sequential(network, prices, options, *given)
    first, *others = found.blocks
    return found.model_copy(update={"blocks": [first.model_copy(update={"stages": first.stages[1:]}), *others]})
