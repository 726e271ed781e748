"""``iossim.torch.compile``: a PyTorch module that runs its schedule, on CUDA streams in one graph, or in order.

The module is read in ONNX form, scheduled, and run unit by unit: on a GPU by cuDNN and kernels, else by PyTorch's own
functions. Inputs are copied in and outputs out, so that the caller's tensors are untouched; each shape has its own
graph. Weights are the module's own tensors, except where the schedule needs others: batch norms folded in, merged
convolutions stacked, filters of 16 bits channels last.
A module that changed runs eagerly until it is compiled again. It is for inference only, without gradients.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise ImportError("iossim.torch needs PyTorch, which is not installed; pip install 'iossim[torch]'") from None

from iossim.torch.compilation import compile, dynamo_backend, load
from iossim.torch.compiled_module import CompiledModule

__all__ = ["CompiledModule", "compile", "dynamo_backend", "load"]
