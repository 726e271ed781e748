"""The backend's own settings, as they are given by name on a command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from iossim.base.errors import OptionError, did_you_mean
from iossim.base.user_folders import user_data
from iossim.execution.layouts import prefers_channels_last, suits_channels_last
from iossim.ir.graph import Graph
from iossim.ir.types import Precision

#: Precisions of storage and of products; networks with scales have products of int8, too.
PRECISIONS = (Precision.FP32, Precision.TF32, Precision.FP16, Precision.BF16)
DEFAULT_WORKSPACE_LIMIT_BYTES = 256 * 2**20
#: cuDNN ranks its plans by what they are expected to take, and no convolution has so many engines of them.
DEFAULT_PLANS = 12
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class CudnnOptions:
    """``tf32`` and ``nondeterministic`` allow plans that multiply in TF32, or give other bits from run to run;
    ``runtime_compiled`` allows those that cuDNN compiles when it builds them, seconds each and anew in each process; of
    depthwise convolutions they always are, since cuDNN's fastest kernel for those is such.
    ``sums`` is what products of fp16 are summed in: ``fp32``, or ``fp16`` where cuDNN has such plans.

    ``workspace_limit_bytes`` bounds the workspace of a plan of cuDNN; ``plans`` is how many of cuDNN's own ranking
    are timed for a convolution, different engines first, fused with its epilogue and apart from it. ``choices`` names
    a file that keeps the choices for later runs and other networks, ``off`` for none; by default it lies beside the
    store of measurements, which do not depend on it. ``clocks`` says how the user has set the device's
    clocks, which measurements are kept under. ``layout`` is how images lie: ``nhwc`` (channels last) or ``nchw``; by
    default channels last where they are of 16 bits and the network's convolutions are mostly of fitting channels.
    """

    tf32: bool = False
    nondeterministic: bool = False
    workspace_limit_bytes: int = DEFAULT_WORKSPACE_LIMIT_BYTES
    clocks: str = "free"
    plans: int = DEFAULT_PLANS
    choices: Path | None = None
    runtime_compiled: bool = False
    layout: str = ""
    sums: str = "fp32"

    def layout_for(self, precision: Precision) -> str:
        """Layout of the images of all networks; ``auto`` where each network has the one that suits it."""
        return self.layout or ("auto" if prefers_channels_last(precision) else "nchw")

    def layout_of(self, graph: Graph, precision: Precision) -> str:
        """Layout of the images of a network."""
        layout = self.layout_for(precision)
        return layout if layout != "auto" else "nhwc" if suits_channels_last(graph) else "nchw"

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Sorted names and values of those that times depend on."""
        left_out = {"choices", "layout", *(["sums"] if self.sums == "fp32" else [])}
        values = {name: value for name, value in asdict(self).items() if name not in left_out}
        return tuple(
            (name, str(value).lower() if isinstance(value, bool) else str(value))
            for name, value in sorted(values.items())
        )


def parsed_options(precision: Precision, options: Mapping[str, str]) -> CudnnOptions:
    """Raises OptionError for an unknown name or value; TF32 is allowed by default where the precision is TF32."""
    known = [*(name for name, _ in CudnnOptions().pairs), "choices", "layout", "sums"]
    for name in options:
        if name not in known:
            raise OptionError(f"backend option {name!r} is not known; {did_you_mean(name, known)}")

    def said(name: str, default: object, remedy: str, fits: Callable[[str], bool]) -> str:
        given = options.get(name, str(default)).lower()
        if not fits(given):
            raise OptionError(f"backend option {name} is {options[name]!r}{remedy}")
        return given

    def truth(name: str, default: bool = False) -> bool:
        return said(name, default, "; give true or false", (*_TRUE, *_FALSE).__contains__) in _TRUE

    def count(name: str, default: int, remedy: str, least: int) -> int:
        return int(said(name, default, remedy, lambda text: text.isascii() and text.isdecimal() and int(text) >= least))

    sums = ("fp32", "fp16") if precision is Precision.FP16 else ("fp32",)
    choices = options.get("choices", "")
    return CudnnOptions(
        truth("tf32", precision is Precision.TF32),
        truth("nondeterministic"),
        count("workspace_limit_bytes", DEFAULT_WORKSPACE_LIMIT_BYTES, "; give a number of bytes", 0),
        options.get("clocks", "free"),
        count("plans", DEFAULT_PLANS, "; give how many plans are timed, at least 1", 1),
        None if choices == "off" else Path(choices) if choices else usual_choices(),
        truth("runtime_compiled"),
        said("layout", "", "; give nchw or nhwc (channels last)", ("", "nchw", "nhwc").__contains__),
        said("sums", "fp32", f" in {precision}; give fp32, or fp16 where `dtype` is fp16", sums.__contains__),
    )


def usual_choices() -> Path:
    """File in which choices are kept by default."""
    return user_data() / "cudnn_choices.json"
