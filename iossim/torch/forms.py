"""Forms of arguments (shape, strides, element type, device, value), which calls share with the compilation."""

from __future__ import annotations

from typing import Any

import torch

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
    """Whether two forms are of tensors in memory that differ at most in shape and strides."""
    return now[:3] == then[:3] and len(now) == len(then) == 5 and isinstance(now[4], tuple)


def told(seen: Form) -> str:
    """A form as text."""
    if len(seen) == 2:
        return str(seen[1])
    kind, dtype, device, shape, layout = seen
    own = "" if kind is torch.Tensor else f" of class {kind.__name__}"
    lies = f", strides {layout}" if isinstance(layout, tuple) and layout != _contiguous(shape) else ""
    return f"{dtype}[{'x'.join(map(str, shape))}]{own} on {device}{lies}"


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return form(torch.empty(shape, device="meta"))[-1]  # type: ignore[no-any-return]


def settings(place: str) -> dict[str, Any]:
    """The settings of PyTorch that affect a module's results."""
    return {
        "autocast": torch.is_autocast_enabled(place) and torch.get_autocast_dtype(place),
        "the default dtype": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
    }
