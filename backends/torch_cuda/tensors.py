"""Between NumPy arrays and torch tensors, and the settings of torch's arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import RLock
from typing import TypeVar

import numpy as np
import torch

from iossim.base.errors import first_line
from iossim.execution.backend import BackendError
from iossim.ir.op import Array
from iossim.ir.types import FP8, DType, Precision, TensorType

T = TypeVar("T")

#: torch calls its element types as NumPy does; of others it has few functions.
DTYPES: dict[DType, torch.dtype] = {
    DType(name): getattr(torch, DType(name).numpy_name)
    for name in ("fp64", "fp32", "fp16", "bf16", *FP8, "int8", "uint8", "int16", "int32", "int64", "bool")
}
#: Types of ``ml_dtypes``, which torch does not know: their numbers travel as the integers of their bits.
_AS_BITS = (DType.BFLOAT16, *FP8)
#: Numbers of 4 bits take a byte each.
DTYPES |= {DType.INT4: torch.int8, DType.UINT4: torch.uint8}


def dtype_of(name: str, value: TensorType) -> torch.dtype:
    """The element type of a tensor as torch has it; raises BackendError where it has none."""
    if value.dtype not in DTYPES:
        raise BackendError(f"{name!r} is {value}, which torch does not support; use backend numpy_reference")
    return DTYPES[value.dtype]


#: Held by the thread whose arithmetic is set, and whose program's memory is in use.
one_thread = RLock()


def to_tensor(array: Array, device: str = "cpu") -> torch.Tensor:
    """A tensor of its own memory on ``device``, of the array's shape and element type."""
    own = np.array(array, order="C")
    if own.dtype in (DType.INT4.numpy, DType.UINT4.numpy):
        own = own.astype(np.uint8 if own.dtype == DType.UINT4.numpy else np.int8)
    if (dtype := DType.of_numpy(own.dtype)) in _AS_BITS:
        return torch.from_numpy(own.view(f"i{own.itemsize}")).view(DTYPES[dtype]).to(device)
    return torch.from_numpy(own).to(device)


def to_array(tensor: torch.Tensor) -> Array:
    """An array of its own memory, of the tensor's shape and element type."""
    own = tensor.detach().cpu().contiguous()
    for dtype in _AS_BITS:
        if own.dtype is DTYPES[dtype]:
            bits: Array = own.view(torch.int16 if dtype.bytes == 2 else torch.int8).numpy().copy()
            return bits.view(dtype.numpy)
    return np.asarray(own.numpy().copy())


def converted(x: torch.Tensor, dtype: DType) -> torch.Tensor:
    """A tensor, or what stands for one, in an element type; what fp8 does not hold becomes its largest number."""
    if dtype in FP8:
        x = torch.clamp(x.to(torch.float32), -FP8[dtype], FP8[dtype])
    return x.to(DTYPES[dtype])


def as_channels_last(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor] = ()
) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """The module and inputs for it, with images and filters laid out channel by channel innermost."""

    def laid_out(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor

    return module._apply(laid_out), [*map(laid_out, inputs)]


#: Settings by which fp32 is multiplied in fewer bits. PyTorch reads the older names for them only where both agree.
_PRODUCTS, _CONVOLUTIONS = torch.backends.cuda.matmul, (torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
_ON_HOST = (torch.backends.mkldnn.matmul, torch.backends.mkldnn.conv)


def uses_tf32(convolutions: bool = False) -> bool:
    """True where PyTorch multiplies fp32 on a GPU in TF32: in products of matrices, or in convolutions."""
    return str((_CONVOLUTIONS[0] if convolutions else _PRODUCTS).fp32_precision) == "tf32"


@contextmanager
def arithmetic(precision: Precision) -> Iterator[None]:
    """Inference with the fastest deterministic algorithm of cuDNN, and with TF32 only where the precision says so.

    The settings are global to torch: they are put back, and are one thread's at a time (``one_thread``). Raises
    BackendError where the device's memory is full.
    """
    tf32, cudnn, places = precision is Precision.TF32, torch.backends.cudnn, (_PRODUCTS, *_CONVOLUTIONS, *_ON_HOST)
    with one_thread:
        kept = [(place, "fp32_precision", place.fp32_precision) for place in places]
        kept += [(cudnn, name, getattr(cudnn, name)) for name in ("enabled", "benchmark", "deterministic")]
        products = _by_older_name(torch.get_float32_matmul_precision)
        convolutions = _by_older_name(lambda: cudnn.allow_tf32)
        try:
            # By the older names, which PyTorch's compiler reads, and by the newer ones, which are heard.
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = True, True, True, tf32
            for each in (*_CONVOLUTIONS, *_ON_HOST):
                each.fp32_precision = "tf32" if tf32 and each in _CONVOLUTIONS else "ieee"
            with torch.inference_mode():
                yield
        except torch.OutOfMemoryError as error:
            raise BackendError(f"{first_line(error)} Take a smaller batch, or end what else runs on it") from error
        finally:
            torch.set_float32_matmul_precision(products)
            cudnn.allow_tf32 = convolutions
            for setting in kept:  # after the older names, which change some of them
                setattr(*setting)


def _by_older_name(read: Callable[[], T]) -> T:
    """A setting by its older name; where the newer ones disagree, they are changed until they do not."""
    for value in ("ieee", "tf32"):
        with suppress(RuntimeError):
            return read()
        for place in (_PRODUCTS, *_CONVOLUTIONS, *_ON_HOST[:1]):
            place.fp32_precision = value
    return read()
