"""Modules made ready to be timed: run once on fixed inputs, and captured where a baseline is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from iossim.backends.torch_cuda.timing import Run
from iossim.base.errors import first_line
from iossim.execution.backend import BackendError

#: Runs before a capture: lazy initialisation and cuDNN's search for algorithms may not happen inside one.
_RUNS_BEFORE_CAPTURE = 3


def prepared(name: str, module: Callable[..., object], inputs: Sequence[torch.Tensor], captured: bool) -> Run:
    """The module on fixed inputs, run once so that what happens at a first run is done."""

    def run() -> None:
        module(*inputs)

    try:
        run()
        return Run(_captured(run), replay=True) if captured else Run(run)
    except RuntimeError as error:
        # What torch.compile raises holds the whole log of a compiler.
        raise BackendError(f"{name} cannot run here: {first_line(error)}; leave it out") from error


def channels_last(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor]
) -> tuple[Callable[..., object], list[torch.Tensor]]:
    """The module and inputs for it, with images and filters laid out channel by channel innermost."""
    layout = torch.channels_last
    images = [tensor.contiguous(memory_format=layout) if tensor.dim() == 4 else tensor for tensor in inputs]
    return module.to(memory_format=layout), images


def _captured(run: Callable[[], object]) -> Callable[[], object]:
    """A replay of one CUDA graph of all that ``run`` issues."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_RUNS_BEFORE_CAPTURE):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Callable[[], object] = graph.replay
    return replay
