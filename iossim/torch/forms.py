"""Forms of arguments (shape, strides, element type, device, value), which calls share with the compilation, and of a
module's outputs: their structure, their layout, and shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch.utils import _pytree as pytree

from iossim.base.errors import ModelError

#: Properties shared with the compiled argument: of a tensor class, element type, device, shape and strides or layout.
Form = tuple[Any, ...]


def form(value: Any) -> Form:
    """The properties that a call's argument shares with the compiled one: for a number, its type and digits."""
    if not isinstance(value, torch.Tensor):
        return type(value), repr(value)
    kind = torch.Tensor if type(value) is torch.nn.Parameter else type(value)
    if value.layout is not torch.strided:
        return kind, value.dtype, value.device, value.shape, value.layout
    # A dimension of length 1 may have any stride.
    strides = [0 if length == 1 else stride for length, stride in zip(value.shape, value.stride(), strict=True)]
    return kind, value.dtype, value.device, value.shape, tuple(strides)


def differs_in_shape(now: Form, then: Form) -> bool:
    """True for two forms of tensors in memory that differ at most in shape and strides."""
    return now[:3] == then[:3] and len(now) == len(then) == 5 and isinstance(now[4], tuple)


def told(seen: Form) -> str:
    """A form as text."""
    if len(seen) == 2:
        return str(seen[1])
    kind, dtype, device, shape, layout = seen
    own = "" if kind is torch.Tensor else f" of class {kind.__name__}"
    contiguous = form(torch.empty(shape, device="meta"))[-1]
    lies = f", strides {layout}" if isinstance(layout, tuple) and layout != contiguous else ""
    return f"{dtype}[{'x'.join(map(str, shape))}]{own} on {device}{lies}"


def settings(place: str) -> dict[str, Any]:
    """The settings of PyTorch that affect a module's results."""
    return {
        "autocast": torch.is_autocast_enabled(place) and torch.get_autocast_dtype(place),
        "the default dtype": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
    }


@dataclass(frozen=True, slots=True)
class _View:
    """An argument (by name), an earlier output (by number), or part of the memory of one, ``offset`` values further."""

    source: str | int
    is_whole: bool
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def between(cls, source: str | int, value: torch.Tensor, output: torch.Tensor, is_whole: bool) -> Self:
        return cls(source, is_whole, output.shape, output.stride(), output.storage_offset() - value.storage_offset())

    def of(self, value: torch.Tensor) -> torch.Tensor:
        if self.is_whole:
            return value
        return value.as_strided(self.shape, self.stride, value.storage_offset() + self.offset)


class Results:
    """The form of what a module returned for ``given``, for other calls; ``kept`` are the module's own tensors.

    Raises ModelError if outputs share memory in a way that cannot be reproduced.
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
        #: For each output: a view, a kept tensor, or its own shape, strides and type.
        self._results: list[_View | torch.Tensor | tuple[Sequence[int], Sequence[int], torch.dtype]] = []
        for number, output in enumerate(outputs):
            one = f"output {number} of module {module}"
            if argument := arguments.get(_memory(output) if output.numel() else 0):
                value = given[argument]
                if value.dtype != output.dtype:
                    raise ModelError(f"{one} is argument {argument!r} read as another type; return a clone")
                self._results.append(_View.between(argument, value, output, output is value))
            elif output.numel() and _memory(output) in own:
                self._results.append(output)
            else:
                for each in range(number):
                    other = outputs[each]
                    if not (shared := _shared(other, output)):
                        continue
                    if shared < output.numel() or _layout(other)[1] != other.stride():
                        raise ModelError(f"{one} shares memory with output {each}; return a clone of one")
                    self._results.append(_View.between(each, other, output, _place(other) == _place(output)))
                    break
                else:
                    self._results.append(_layout(output))

    def returned(self, outputs: Sequence[torch.Tensor], given: Mapping[str, Any]) -> Any:
        """The module's result for these outputs of its graph, in newly allocated memory."""
        made: list[torch.Tensor] = []
        for result, output in zip(self._results, outputs, strict=True):
            match result:
                case _View(source=source):
                    made.append(result.of(made[source] if isinstance(source, int) else given[source]))
                case torch.Tensor():
                    made.append(result)
                case shape, stride, dtype:
                    made.append(torch.empty_strided(shape, stride, dtype=dtype, device=output.device))
                    made[-1].copy_(output)
        return pytree.tree_unflatten(made, self._structure)


def twins(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments whose tensors are copies with the same layout and shared memory."""
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


def _layout(output: torch.Tensor) -> tuple[Sequence[int], Sequence[int], torch.dtype]:
    """Shape, strides and type of an output; strides are those of a new tensor if its values share memory."""
    expanded = any(length > 1 and not stride for length, stride in zip(output.shape, output.stride(), strict=True))
    stride = torch.empty(output.shape, device="meta").stride() if expanded else output.stride()
    return output.shape, stride, output.dtype


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _shared(one: torch.Tensor, other: torch.Tensor) -> int:
    """How many values of ``other`` are at addresses of values of ``one``; -1 for different types in the same memory."""
    if not _memory(one) or _memory(one) != _memory(other):
        return 0
    if one.dtype != other.dtype:
        return -1
    places = torch.arange(one.untyped_storage().nbytes() // one.element_size())
    first, second = (
        places.as_strided(each.shape, each.stride(), each.storage_offset()).reshape(-1) for each in (one, other)
    )
    return int(torch.isin(second, first).sum())


def _place(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()
