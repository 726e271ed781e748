"""``torch.compile(module, backend="iossim")``: the schedule of each graph that dynamo finds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from operator import is_
from typing import Any

import torch

from iossim.torch.compilation import compile


def dynamo_backend(body: Any, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A callable for a graph of dynamo's: weights, which are passed as inputs, are restored; shapes are fixed.

    A graph with sizes as inputs, or with requested gradients, runs eagerly, with a warning, and so does a call with
    other weights. Raises as :func:`iossim.torch.compile`.
    """
    eager: Callable[..., Any] = body.forward
    if not all(isinstance(value, torch.Tensor) for value in example_inputs):
        return _eager(eager, "sizes are inputs of this graph")
    if torch.is_grad_enabled() and any(value.requires_grad for value in example_inputs):
        return _eager(eager, "gradients are asked of this graph; call it under torch.no_grad()")
    # A copy: dynamo's calls match the arguments of its own graph, and its module makes its forward at its first call.
    whole = torch.fx.GraphModule(body, deepcopy(body.graph))
    places = [node for node in whole.graph.nodes if node.op == "placeholder"]
    free, weights = [], {}
    for number, (node, value) in enumerate(zip(places, example_inputs, strict=True)):
        if not _is_weight(node.name, value):
            free.append(number)
            node.target = node.name  # the exporter's name for it
            continue
        weights[number] = value
        keep = whole.register_parameter if isinstance(value, torch.nn.Parameter) else whole.register_buffer
        keep(node.name, value)
        with whole.graph.inserting_before(node):
            node.replace_all_uses_with(whole.graph.get_attr(node.name))
        whole.graph.erase_node(node)
    whole.recompile()
    compiled = compile(whole.eval(), tuple(example_inputs[number] for number in free), dynamic=False)
    others: Callable[..., Any] | None = None

    def run(*given: Any) -> Any:
        nonlocal others
        if all(map(is_, map(given.__getitem__, weights), weights.values())):
            return compiled(*(given[number] for number in free))
        others = others or _eager(eager, "weights were replaced since this graph was compiled")
        return others(*given)

    return run


def _eager(forward: Callable[..., Any], reason: str) -> Callable[..., Any]:
    warnings.warn(f"iossim.torch: {reason}; it runs eagerly", stacklevel=3)
    return forward


def _is_weight(name: str, value: Any) -> bool:
    """Whether an input of a dynamo graph is a parameter or buffer of the module that it was made from."""
    return isinstance(value, torch.nn.Parameter) or "_buffers_" in name
