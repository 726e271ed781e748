#!/usr/bin/env python3
"""Number of plans that cuDNN offers for the operators of sixteen networks, on devices described to it, without a GPU.

    python3 benchmarks/cudnn_plans.py

Every convolution, product and attention of a network's units is requested as by the backend, in fp16 and bf16, by one
call with its epilogue (*fused*) and without (*apart*). A cell has the fewest and the most plans of any, of the fused
and of the plain ones. The exit code is 1 if one has no plan, or a convolution none that can be built.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from described_gpus import DEVICES, describe, stand_in

if TYPE_CHECKING:
    from iossim.backends.cupy_cudnn.convolution import Asked, ConvolutionCall
    from iossim.backends.cupy_cudnn.cudnn_graphs import CudnnGraphs
    from iossim.ir.network import Network

NETWORKS = (
    "squeezenet", "inception_v3", "randwire", "nasnet_a", "resnet50", "mobilenet_v1", "shufflenet_v1", "vgg16", "ssd300",
    "bert_s", "gpt2", "llama_1b", "whisper_encoder", "whisper_decoder", "clip", "moe_shared",
)  # fmt: skip
DTYPES = ("bf16", "fp16")


def asked_by(network: Network) -> tuple[set[Asked], set[Asked]]:
    """Requests of a network's units to cuDNN: by one call with an epilogue, or a whole attention; and plain."""
    from iossim.backends.cupy_cudnn.prepared_plan import launch_program
    from iossim.backends.cupy_cudnn.weights import Weights
    from iossim.execution.layouts import suits_channels_last
    from iossim.execution.lower import lower_schedule
    from iossim.tasks.measured_schedules import plain_schedule

    plan = lower_schedule(plain_schedule(network, "sequential"), network, in_place=True)
    weights = Weights(network.graph, cast("Any", None), suits_channels_last(network.graph))
    fused: set[Asked] = set()
    plain: set[Asked] = set()
    for launch in plan.launches:
        for call in _calls(launch_program(network, plan, launch, weights).convolutions):
            by_others = "apart" in call.ways and call.asked("apart") is None
            whole = call.convolution != call.convolution.plain or by_others
            (fused if whole else plain).add(call.convolution)
            if not by_others:
                plain.add(call.convolution.plain)
    return fused, plain


def _calls(calls: tuple[ConvolutionCall, ...]) -> Iterator[ConvolutionCall]:
    for call in calls:
        yield call
        yield from call.parts()


def counts(library: CudnnGraphs, asked: set[Asked]) -> tuple[str, list[str]]:
    """The fewest and most plans, and the requests without any."""
    from iossim.backends.cupy_cudnn.convolution import Convolution

    numbers: list[int] = []
    without: list[str] = []
    for each in asked:
        numbers.append(len(library.planned_names(each)))
        # Plans that cuDNN has the driver compile are not built here.
        is_built = isinstance(each, Convolution) and not each.compiles_activation
        if not numbers[-1] or (is_built and next(library.plans(each), None) is None):
            without.append(f"{each}: {library.refusal(each)}")
    return f"{min(numbers)}-{max(numbers)}" if numbers else "", without


def main() -> int:
    from iossim.backends.cupy_cudnn.convolution import Convolution, Product
    from iossim.backends.cupy_cudnn.cudnn_graphs import CudnnGraphs
    from iossim.backends.cupy_cudnn.options import CudnnOptions
    from iossim.models.load import load

    without: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        if reason := stand_in(Path(folder)):
            print(f"cuDNN cannot plan without a device: {reason}", file=sys.stderr)
            return 2
        for dtype in DTYPES:
            print(f"\n| {dtype} | convolutions, products, attentions | {' | '.join(DEVICES)} |")
            print(f"|{'---|' * (2 + len(DEVICES))}")
            for name in NETWORKS:
                options = {"units": "fused"} if name.startswith("bert") else {}
                fused, plain = asked_by(load(name, dtype=dtype, **options))
                cells = []
                for device in DEVICES:
                    library = CudnnGraphs(CudnnOptions(), describe(device))
                    (by_one, lacking), (apart, more) = counts(library, fused), counts(library, plain)
                    cells.append(f"{by_one or 'none asked'}, {apart}")
                    without += [f"{name}, {dtype}, {device}: {each}" for each in (*lacking, *more)]
                kinds = [sum(isinstance(each, kind) for each in plain) for kind in (Convolution, Product)]
                attentions = sum(not isinstance(each, Convolution | Product) for each in fused)
                print(f"| {name} | {', '.join(map(str, [*kinds, attentions]))} | {' | '.join(cells)} |", flush=True)
    print(f"\n{len(without)} without a plan", *without, sep="\n")
    return 1 if without else 0


if __name__ == "__main__":
    sys.exit(main())
