"""Prices from a measurement store only: results of a device are reproduced without the device.

A stage that is missing in the store cannot run. The newest record of a stage counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from iossim.cost.capabilities import MeasuredBy
from iossim.cost.measured.cost_model import identity_of, price_signatures
from iossim.cost.measured.record import Kind, MeasurementRecord, boundary_us
from iossim.cost.measured.stage_plans import StageSignatures
from iossim.cost.measured.store import Filter, MeasurementStore, StoredContext, StoreError, default_store
from iossim.cost.model import CostModelIdentity, Prices, StageBounds
from iossim.execution.backend import Context
from iossim.execution.engine import AUTO, Engine
from iossim.hardware.profile import DeviceProfile
from iossim.ir.types import Precision
from iossim.schedule.batch import StageBatch
from iossim.schedule.problem import ScheduleProblem

#: Maximum number of contexts in an error message.
_SHOWN = 8


@dataclass
class ReplayCostModel:
    """Measurements in ``context``: the records of its stages by signature, and the time of a boundary."""

    measured_by = MeasuredBy.STORE
    context: Context
    records: dict[str, MeasurementRecord]
    between_us: float
    _signatures: StageSignatures = field(default_factory=StageSignatures)

    @cached_property
    def _prices_us(self) -> dict[str, float]:
        return {signature: record.copy_us(self.between_us) for signature, record in self.records.items()}

    @property
    def identity(self) -> CostModelIdentity:
        """The identity of the measurements, since the prices are the same."""
        return identity_of(self.context)

    def price_keys(self, problem: ScheduleProblem) -> Sequence[str]:
        return self._signatures.price_keys(problem)

    def signatures(self, batch: StageBatch) -> list[str]:
        return self._signatures.of_batch(batch)

    def price_stages(self, batch: StageBatch) -> Prices:
        """Microseconds of each stage, shape ``[len(batch)]``; inf for unmeasured ones."""
        return price_signatures(self.signatures(batch), self._prices_us)

    def price_boundary(self, left_concurrent: bool, right_concurrent: bool) -> float:
        return self.between_us if left_concurrent or right_concurrent else 0.0

    def bounds(self, problem: ScheduleProblem) -> StageBounds | None:
        """None: a store gives no bound for unmeasured stages."""
        return None


def replay(store: MeasurementStore, number: int, is_cold: bool = False) -> ReplayCostModel:
    """The prices of context ``number`` of a store, warm or cold; raises StoreError if it has none."""
    held = [record for record in store.records(Filter(context=number)) if record.is_cold == is_cold]
    if not held:
        raise StoreError(
            f"measurement store {store.path}: context {number} has no {'cold' if is_cold else 'warm'} measurements; "
            "'iossim measurements list' says what there is"
        )
    context = held[0].context
    between_us = boundary_us(held) if Engine(context.engine).synchronises else 0.0
    if between_us is None:
        raise StoreError(
            f"measurement store {store.path}: context {number} does not say what a boundary takes; measure a stage "
            "there"
        )
    stages = (Kind.UNIT, Kind.STAGE, Kind.MERGE)
    # The order is by date: the newest of each signature stays.
    return ReplayCostModel(context, {one.signature: one for one in held if one.kind in stages}, between_us)


def create(
    device: DeviceProfile | None, precision: Precision, engine: str, argument: str = "", store: Path | None = None
) -> ReplayCostModel:
    """Prices from the store in ``argument``, by default ``store`` or the user's own; suffix ``#NUMBER``: a context.

    Without a number the store must have one context of the given precision, device and engine; ``auto`` matches any
    engine. Raises StoreError.
    """
    name, mark, digits = argument.rpartition("#")
    if not mark or not digits.isdecimal():
        name, digits = argument, ""
    path = Path(name) if name else store or default_store()
    with MeasurementStore(path, read_only=True) as opened:
        wanted = Filter(
            context=int(digits) if digits else None,
            device=device.name if device else None,
            precision=str(precision),
            engine=None if engine == AUTO else engine,
        )
        fitting = opened.contexts(wanted)
        if len(fitting) != 1:
            asked = (
                str(precision)
                + ("" if engine == AUTO else f" under the {engine} engine")
                + (f" on {device.name}" if device else "")
            )
            asked += f" in context {digits}" if digits else ""
            there = described(fitting or opened.contexts())
            if fitting:
                raise StoreError(
                    f"measurement store {path} has {len(fitting)} contexts of {asked}: {there}; "
                    f"say which with replay:{path}#NUMBER"
                )
            raise StoreError(f"measurement store {path} has nothing of {asked}; it has {there or 'nothing at all'}")
        return replay(opened, fitting[0].number)


def described(contexts: list[StoredContext]) -> str:
    """Contexts in one line."""
    texts = [
        f"{one.number}: {one.context.backend} on {one.context.device}, {one.context.precision}, {one.context.engine} "
        f"engine ({one.records:,} measurements{_versions(one.context)})"
        for one in contexts[:_SHOWN]
    ]
    more = [f"{len(contexts) - _SHOWN} more"] if len(contexts) > _SHOWN else []
    return "; ".join([*texts, *more])


def _versions(context: Context) -> str:
    named = [" ".join(pair) for pair in context.libraries] + ["=".join(pair) for pair in context.options]
    return "".join(f", {text}" for text in named)
