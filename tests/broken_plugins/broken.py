"""What does not work, each in its own way."""

from __future__ import annotations

from iossim.cost.model import CostModelIdentity, Prices
from iossim.cost.random import RandomCostModel
from iossim.schedule.batch import StageBatch


def create(*arguments: object) -> object:
    raise RuntimeError("the licence server\nis down")


def profile() -> str:
    return "name: broken-gpu\ntitle: no facts\n"


def rules() -> str:
    return "rule: a\nsource: [y]\noutputs: {y: x}\n"


def output(*arguments: object) -> object:
    return 7


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
