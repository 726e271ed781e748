"""A module that runs its schedule for calls that match the compilation, and otherwise eagerly, with a warning."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from iossim.backends.torch_cuda.tensors import one_thread
from iossim.base.errors import IossimError, ModelError
from iossim.torch.bound import Bound
from iossim.torch.forms import Form, differs_in_shape, form, settings, told
from iossim.torch.saved import write
from iossim.torch.state import State

#: Number of shapes that are compiled before others run eagerly, the same as torch.compile's.
MOST_SHAPES = 8
#: Compiles a module for arguments by name.
Compile = Callable[[Mapping[str, Any]], Bound]


class CompiledModule:
    """Runs a module's schedule; it is called like the module, and returns the same.

    With ``again`` other shapes and strides are compiled at their first call, :data:`MOST_SHAPES` of them. Calls that do
    not match run eagerly, with one warning per reason: other arguments (shape, strides, element
    type, device, or a value that is no tensor), a changed module, other settings of PyTorch, a requested
    gradient. Calls from several threads run sequentially. It can be neither copied nor pickled: :meth:`save` it.
    """

    def __init__(self, module: Any, bounds: Sequence[Bound], place: str, again: Compile | None = None) -> None:
        first = bounds[0]
        self.module, self.network, self.schedule, self.plan = module, first.network, first.schedule, first.plan
        self.shared_weights = first.shared_weights
        self._name, self._place, self._again = type(module).__name__, place, again
        self._signature = inspect.signature(module.forward)
        #: By the forms of arguments; None for shapes that run eagerly.
        self._bounds: dict[tuple[Form, ...], Bound | None] = {}
        for bound in bounds:
            example = inspect.BoundArguments(self._signature, dict(bound.given))
            example.apply_defaults()
            self._bounds[tuple(map(form, example.arguments.values()))] = bound
        self._settings = settings(place)
        self._on_gpu = any(getattr(value, "is_cuda", False) for value in first.given.values())
        self._warned: set[str] = set()
        self._state = State(module)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        call = self._signature.bind(*arguments, **keywords)
        given = dict(call.arguments)
        call.apply_defaults()
        kind, reason = self._unfit(call.arguments)
        bound = None
        if not reason:
            kind = "arguments"
            bound, reason = self._bound(given, call.arguments)
        if bound is None:
            if kind not in self._warned:
                self._warned.add(kind)
                warnings.warn(f"iossim.torch: {reason}; this call runs eagerly", stacklevel=2)
            return self.module(*arguments, **keywords)
        return bound.run(call.arguments)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ModelError(
            f"compiled module {self._name} holds memory of its own and cannot be copied or pickled; .save(path) what "
            "was compiled, or copy its .module"
        )

    def save(self, path: str | Path) -> None:
        """Write the schedules of all shapes, with the algorithm of each launch, for :func:`iossim.torch.load`.

        Weights that are not tensors of the module are included. Raises ModelError if the file cannot be written.
        """
        write(Path(path), self._name, [bound for bound in self._bounds.values() if bound is not None])

    def _bound(self, given: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[Bound | None, str]:
        """The bound schedule for a call, or the reason why there is none; compiles new shapes."""
        forms = tuple(map(form, arguments.values()))
        if (found := self._bounds.get(forms)) is not None:
            return found, ""
        first = next(iter(self._bounds))
        one = next((number for number, now in enumerate(forms) if now != first[number]), 0)
        reason = f"{[*arguments][one]} is {told(forms[one])}, compiled was {told(first[one])}"
        alike = all(now == then or differs_in_shape(now, then) for now, then in zip(forms, first, strict=True))
        if self._again is None or not alike or forms in self._bounds:
            return None, reason
        if len(self._bounds) >= MOST_SHAPES:
            return None, f"{reason}, and {MOST_SHAPES} shapes in all"
        with one_thread, torch.inference_mode(mode=False):
            try:
                found = self._again(given)
            except IossimError as error:
                reason = f"{reason}; {error}"
            self._bounds[forms] = found
            self._state = State(self.module)
        return found, reason

    def _unfit(self, given: Mapping[str, Any]) -> tuple[str, str]:
        """The kind of mismatch between a call and the compilation, and a sentence on it; empty if they match."""
        if self._on_gpu and torch.cuda.is_current_stream_capturing():
            return "capture", "the caller captures a CUDA graph"
        if path := self._state.change():
            return path, f"{path} of module {self._name} changed since it was compiled; compile it again"
        for (name, then), now in zip(self._settings.items(), settings(self._place).values(), strict=True):
            if then != now:
                return name, f"{name} is {now}, compiled was {then}"
        if torch.is_grad_enabled():
            for name, value in given.items():
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    return "gradient", f"{name} asks for a gradient"
            if any(tensor.requires_grad for tensor in self._state.tensors):
                return "gradient", "parameters ask for gradients; call it under torch.no_grad()"
        return "", ""
