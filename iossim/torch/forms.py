"""Forms of arguments (shape, strides, element type, device, value), which calls share with the compilation, and of a
module's outputs: their structure, their layout, and shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from iossim.backends.torch_cuda.tensors import uses_tf32
from iossim.base.errors import ModelError

#: A memory of outputs begins at so many bytes, so that values of every type lie at multiples of their size.
_ALIGNMENT = 16
_LEAVES = (torch.Tensor, bool, int, float, str, type(None))
#: Properties shared with the compiled argument: of a tensor class, element type, device, shape and strides or layout.
Form = tuple[Any, ...]


def form(value: object) -> Form:
    """The properties that a call's argument shares with the compiled one: for a number, its type and digits."""
    if not isinstance(value, torch.Tensor):
        return type(value), repr(value)
    kind = torch.Tensor if type(value) is torch.nn.Parameter else type(value)
    if value.layout is not torch.strided:
        return kind, value.dtype, value.device, value.shape, value.layout
    # A dimension of length 1 may have any stride.
    strides = [0 if length == 1 else stride for length, stride in zip(value.shape, value.stride(), strict=True)]
    return kind, value.dtype, value.device, value.shape, tuple(strides)


def leaves(arguments: Mapping[str, object]) -> dict[str, object]:
    """Arguments by name; what a tuple, a dict or another tree of PyTorch's holds by its path, as ``images[0]``."""
    found: dict[str, object] = {}
    for name, value in arguments.items():
        if isinstance(value, _LEAVES):
            found[name] = value
            continue
        try:
            found |= {f"{name}{pytree.keystr(path)}": leaf for path, leaf in pytree.tree_leaves_with_path(value)}
        except ValueError:  # of a class that was registered without keys
            found |= {f"{name}[{number}]": leaf for number, leaf in enumerate(pytree.tree_leaves(value))}
    return found


def told(seen: Form) -> str:
    """A form as text."""
    if len(seen) == 2:
        return str(seen[1])
    kind, dtype, device, shape, layout = seen
    own = "" if kind is torch.Tensor else f" of class {kind.__name__}"
    is_usual = layout == form(torch.empty(shape, device="meta"))[-1]
    lies = "" if is_usual else f", {'strides ' if isinstance(layout, tuple) else ''}{layout}"
    return f"{dtype}[{'x'.join(map(str, shape))}]{own} on {device}{lies}"


def settings(place: str) -> dict[str, object]:
    """The settings of PyTorch that affect a module's results."""
    return {
        "TF32 in products": place == "cuda" and uses_tf32(),
        "autocast": torch.is_autocast_enabled(place) and torch.get_autocast_dtype(place),
        "the default dtype": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
    }


@dataclass(frozen=True, slots=True, eq=False)
class _View:
    """An output in the memory of an argument, by name, or in a new one, by number; ``offset`` values into it."""

    source: str | int
    is_whole: bool
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, value: torch.Tensor) -> torch.Tensor:
        if self.is_whole:
            return value
        return value.as_strided(self.shape, self.stride, value.storage_offset() + self.offset)

    def once(self, value: torch.Tensor) -> torch.Tensor:
        """One element along each axis that repeats them."""
        if all(self.stride):
            return value
        return value[tuple(slice(None) if stride else slice(1) for stride in self.stride)]


class Results:
    """The form of what a module returned for ``given``, for other calls; ``kept`` are the module's own tensors.

    Outputs that share memory share it again. Raises ModelError for an argument that is read as another type.
    """

    def __init__(
        self,
        module: str,
        outputs: Sequence[object],
        structure: pytree.TreeSpec,
        given: Mapping[str, object],
        kept: Sequence[torch.Tensor],
    ) -> None:
        self._structure = structure
        values = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        arguments = {_memory(value): name for name, value in values.items()}
        arguments |= {id(value): name for name, value in values.items()}  # of which several may lie in one memory
        own = {*map(_memory, kept)}
        #: The bytes that outputs span in each memory of several, by its address.
        self._sizes: dict[int, int] = {}
        #: Outputs in order: a value that every call returns (no tensor, or one of the module's own), or how to view it.
        self._results: list[object] = []
        #: Those in new memory, each once, and the number of the tensor that is copied there.
        self._new: dict[_View, int] = {}
        known_views: dict[tuple[object, ...], _View] = {}
        tensors = [output for output in outputs if isinstance(output, torch.Tensor)]
        numbers = iter(range(len(tensors)))
        for output in outputs:
            if not isinstance(output, torch.Tensor):
                self._results.append(output)
                continue
            number = next(numbers)
            memory = _memory(output) if output.numel() else 0
            place = output.dtype, output.shape, output.stride()
            known = map(arguments.get, (id(output), id(output._base), memory))
            if memory and (argument := next(filter(None, known), None)):
                value = values[argument]
                if value.dtype != output.dtype:
                    raise ModelError(
                        f"output {number} of module {module} is argument {argument!r} read as another type; return a "
                        "clone"
                    )
                offset = output.storage_offset() - value.storage_offset()
                self._results.append(_View(argument, output is value, *place, offset))
            elif memory and memory in own:
                self._results.append(output)
            else:
                together = [each for each in tensors if _memory(each) == memory > 0]
                begin = min(map(_begin, together), default=0) // _ALIGNMENT * _ALIGNMENT
                size = max(map(_end, together), default=0) - begin
                if len(together) > 1:
                    self._sizes[memory] = size + -size % _ALIGNMENT
                view = _View(memory or -number, False, *place, (_begin(output) - begin) // output.element_size())
                view = known_views.setdefault(astuple(view), view)
                self._results.append(view)
                self._new.setdefault(view, number)

    def returned(self, outputs: Sequence[torch.Tensor], given: Mapping[str, object]) -> object:
        """The module's result for these outputs of its graph, in newly allocated memory."""
        memories: dict[str | int, torch.Tensor] = {}
        made: dict[_View, torch.Tensor] = {}
        for view, number in self._new.items():
            device, source = outputs[number].device, view.source
            if source not in self._sizes:
                made[view] = torch.empty_strided(view.shape, view.stride, dtype=view.dtype, device=device)
                continue
            if source not in memories:
                memories[source] = torch.empty(self._sizes[source], dtype=torch.uint8, device=device)
            made[view] = view.of(memories[source].view(view.dtype))
        if made:  # in one kernel
            places = [view.once(each) for view, each in made.items()]
            torch._foreach_copy_(places, [view.once(outputs[number]) for view, number in self._new.items()])
        for each in self._results:
            if isinstance(each, _View) and each not in made:
                made[each] = each.of(given[str(each.source)])
        results = [made[each] if isinstance(each, _View) else each for each in self._results]
        return pytree.tree_unflatten(results, self._structure)


def twins(given: Mapping[str, object]) -> dict[str, object]:
    """Arguments by name whose tensors are copies with the same layout and shared memory."""
    memory: dict[int, torch.UntypedStorage] = {}

    def twin(value: object) -> object:
        if not isinstance(value, torch.Tensor):
            return value
        if value.layout is not torch.strided or not _memory(value) or value.is_conj() or value.is_neg():
            return value.detach().clone()
        if _memory(value) not in memory:
            memory[_memory(value)] = value.untyped_storage().clone()
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        return made.set_(memory[_memory(value)], value.storage_offset(), value.shape, value.stride())

    return {name: pytree.tree_map(twin, value) for name, value in given.items()}


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0


def _begin(tensor: torch.Tensor) -> int:
    """The first byte of a tensor in its memory."""
    return int(tensor.storage_offset() * tensor.element_size())


def _end(tensor: torch.Tensor) -> int:
    """The byte after the last of a tensor in its memory."""
    reach = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return _begin(tensor) + int((reach + 1) * tensor.element_size() * (tensor.numel() > 0))
