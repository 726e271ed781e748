"""cuDNN's calls on a device: by precision and layout what is computed with a convolution, and whether an attention is
one call.

Asked for with operands of usual size, as networks ask for theirs: by its plans, of which the first is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from iossim.backends.cupy_cudnn.convolution import Convolution, FusedAttention, TensorLayout
from iossim.backends.cupy_cudnn.driver import ConvolutionLibrary
from iossim.backends.cupy_cudnn.views import channels_last, row_major
from iossim.ir.types import Precision

#: What it computes in: what is stored, and what is multiplied. Networks with scales have products of int8 besides.
PRECISIONS = (Precision.FP32, Precision.TF32, Precision.FP16, Precision.BF16)


def offers_in_words(library_of: Callable[[Precision], ConvolutionLibrary]) -> Iterator[str]:
    """A line for each precision: the calls of each layout, and, in 16 bits, why an attention is not one call."""
    for precision in (*PRECISIONS, Precision.INT8):
        library, said = library_of(precision), []
        for layout in ("nchw", "nhwc"):
            calls = _calls(precision, layout == "nhwc").items()
            said.append(f"{layout} {', '.join(name for name, asked in calls if any(library.plans(asked))) or 'none'}")
        if precision.storage.bytes == 2:
            heads = TensorLayout((1, 12, 128, 64), (128 * 768, 64, 768, 1))
            asked = FusedAttention(heads, heads, heads, heads, 0.125, precision.storage)
            is_one = any(library.plans(asked))
            said.append("attention" if is_one else f"attention apart ({library.refusal(asked) or 'no plan'})")
        yield f"{precision}: {'; '.join(said)}"


def _calls(precision: Precision, last: bool) -> dict[str, Convolution]:
    def layout(*shape: int) -> TensorLayout:
        return TensorLayout(shape, channels_last(shape) if last else row_major(shape))

    x, w, one = layout(8, 64, 28, 28), layout(64, 64, 3, 3), (1, 1)
    plain = Convolution(x, w, x, one, one, one, one, dtype=precision.storage, last=last)
    if precision is Precision.INT8:  # scales and zero points are applied after it
        return {"conv": plain} if last else {}
    fused = replace(plain, bias=True, activation="relu")
    return {"conv": plain, "conv+bias+relu": fused, "conv+residual+bias+relu": replace(fused, z=x)}
