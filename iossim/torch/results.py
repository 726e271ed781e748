"""How a module returns its outputs: their structure, their layout, and which share memory with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from iossim.base.errors import ModelError


@dataclass(frozen=True, slots=True)
class _View:
    """An argument, or some of its memory, ``offset`` values behind its first."""

    argument: str
    is_whole: bool
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        value = given[self.argument]
        return (
            value if self.is_whole else value.as_strided(self.shape, self.stride, value.storage_offset() + self.offset)
        )


class Results:
    """What a module returned for ``given``, as the pattern of other calls; ``kept`` are the module's own tensors.

    Raises ModelError where outputs share memory in a way that is not reproduced.
    """

    def __init__(
        self,
        module: str,
        outputs: Sequence[torch.Tensor],
        structure: Any,
        given: Mapping[str, Any],
        kept: Sequence[torch.Tensor],
    ) -> None:
        self._structure = structure
        arguments = {_memory(value): name for name, value in given.items() if isinstance(value, torch.Tensor)}
        own = {*map(_memory, kept)}
        #: What each output is: a view, a kept tensor, the number of an equal one, or the layout of memory of its own.
        self._results: list[_View | torch.Tensor | int] = []
        self._kept: set[int] = set()
        for number, output in enumerate(outputs):
            one = f"output {number} of module {module}"
            if argument := arguments.get(_memory(output) if output.numel() else 0):
                value = given[argument]
                if value.dtype != output.dtype:
                    raise ModelError(f"{one} is argument {argument!r} read as another type; return a clone")
                offset = output.storage_offset() - value.storage_offset()
                self._results.append(_View(argument, output is value, output.shape, output.stride(), offset))
            elif output.numel() and _memory(output) in own:
                self._kept.add(number)
                self._results.append(output)
            else:
                others = [each for each in range(number) if _overlap(outputs[each], output)]
                if others and not _is_same(outputs[others[0]], output):
                    raise ModelError(f"{one} shares memory with output {others[0]}; return a clone of one")
                self._results.append(others[0] if others else _like(output))

    def returned(self, outputs: Sequence[torch.Tensor], given: Mapping[str, Any]) -> Any:
        """What the module returns whose graph has these outputs, in memory of its own."""
        made: list[torch.Tensor] = []
        for number, (result, output) in enumerate(zip(self._results, outputs, strict=True)):
            match result:
                case _View():
                    made.append(result.of(given))
                case int():
                    made.append(made[result])
                case _ if number in self._kept:
                    made.append(result)
                case _:
                    made.append(
                        torch.empty_strided(
                            result.shape, result.stride(), dtype=output.dtype, device=output.device
                        ).copy_(output)
                    )
        return pytree.tree_unflatten(made, self._structure)


def twins(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments whose tensors are copies that lie, and share memory, as those do."""
    memory: dict[int, torch.UntypedStorage] = {}

    def twin(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.layout is not torch.strided or not _memory(value):
            return value.detach().clone()
        if _memory(value) not in memory:
            memory[_memory(value)] = value.untyped_storage().clone()
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        return made.set_(memory[_memory(value)], value.storage_offset(), value.shape, value.stride())

    return {name: twin(value) for name, value in given.items()}


def _like(output: torch.Tensor) -> torch.Tensor:
    """A tensor without memory that lies as an output does; one whose values share memory is laid out anew."""
    expanded = any(length > 1 and not stride for length, stride in zip(output.shape, output.stride(), strict=True))
    like = torch.empty_strided(output.shape, output.stride(), dtype=output.dtype, device="meta")
    return like.contiguous() if expanded else like


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a value of one lies in memory where one of the other does."""
    if not _memory(one) or _memory(one) != _memory(other):
        return False
    marks = torch.zeros(one.untyped_storage().nbytes(), dtype=torch.bool)
    for tensor, mark in ((one, True), (other, False)):
        size = tensor.element_size()
        stride = [size * step for step in tensor.stride()]
        for byte in range(size):
            lies = marks.as_strided(tensor.shape, stride, size * tensor.storage_offset() + byte)
            if mark:
                lies.fill_(True)
            elif lies.any():
                return True
    return False


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return (one.stride(), one.storage_offset()) == (other.stride(), other.storage_offset())
