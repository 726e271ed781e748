"""What cuDNN offers on a device: in which precisions and layouts, what it takes into one call with a convolution, and
whether an attention is one call.

Asked for with operands of usual size, as networks ask for theirs: by its plans, of which the first is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from iossim.backends.cupy_cudnn.convolution import Convolution, FusedAttention, TensorLayout
from iossim.backends.cupy_cudnn.driver import ConvolutionLibrary
from iossim.backends.cupy_cudnn.views import channels_last, row_major
from iossim.ir.types import Precision

#: What it computes in: what is stored, and what is multiplied. Networks with scales have products of int8 besides.
PRECISIONS = (Precision.FP32, Precision.TF32, Precision.FP16, Precision.BF16)
LAYOUTS = {"nchw": False, "nhwc": True}


def convolution_calls(library_of: Callable[[Precision], ConvolutionLibrary]) -> dict[str, dict[str, list[str]]]:
    """For each precision and layout, what is computed by one call: those of which cuDNN has a plan."""
    found: dict[str, dict[str, list[str]]] = {}
    for precision in (*PRECISIONS, Precision.INT8):
        library = library_of(precision)
        found[precision] = {
            layout: [name for name, asked in _calls(precision, last).items() if next(library.plans(asked), None)]
            for layout, last in LAYOUTS.items()
        }
    return found


def attention_calls(library_of: Callable[[Precision], ConvolutionLibrary]) -> dict[str, str]:
    """For each precision of 16 bits why an attention is computed apart; empty where one call computes it."""
    heads = TensorLayout((1, 12, 128, 64), (128 * 768, 64, 768, 1))
    found: dict[str, str] = {}
    for precision in PRECISIONS:
        if precision.storage.bytes == 2:
            asked, library = FusedAttention(heads, heads, heads, heads, 0.125, precision.storage), library_of(precision)
            has_plan = next(library.plans(asked), None) is not None
            found[precision] = "" if has_plan else library.refusal(asked) or "cuDNN offers no plan"
    return found


def in_words(found: Mapping[str, Mapping[str, list[str]]], apart: Mapping[str, str]) -> list[str]:
    """A line for each precision; ``apart`` are the answers of :func:`attention_calls`."""
    lines = []
    for precision, layouts in found.items():
        said = [f"{layout} {', '.join(calls) or 'none'}" for layout, calls in layouts.items()]
        if precision in apart:
            said.append(f"attention apart ({apart[precision]})" if apart[precision] else "attention")
        lines.append(f"{precision}: {'; '.join(said)}")
    return lines


def _calls(precision: Precision, last: bool) -> dict[str, Convolution]:
    def layout(*shape: int) -> TensorLayout:
        return TensorLayout(shape, channels_last(shape) if last else row_major(shape))

    x, w, one = layout(8, 64, 28, 28), layout(64, 64, 3, 3), (1, 1)
    plain = Convolution(x, w, x, one, one, one, one, dtype=precision.storage, last=last)
    if precision is Precision.INT8:  # scales and zero points are applied behind it
        return {"conv": plain} if last else {}
    fused = replace(plain, bias=True, activation="relu")
    return {"conv": plain, "conv+bias+relu": fused, "conv+residual+bias+relu": replace(fused, z=x)}
