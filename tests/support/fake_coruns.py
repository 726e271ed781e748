"""Kernels side by side, made up: two streams, the second of which waits."""

from __future__ import annotations

from fake_timelines import fake_execution

from iossim.backends.simulator.raw_kernels import RawKernel
from iossim.execution.execution import Span
from iossim.profiles.corun import Corun, CorunKernel, Slowed, Through

LONG_NAME = "void at::native::(anonymous namespace)::elementwise_kernel<4, at::AddFunctor<float> >(int, float*)"


def fake_corun() -> Corun:
    """Stream 7 runs two kernels; stream 9 one, which waits for slots and shares DRAM."""
    kernels = [RawKernel("gemm", 7, 80, 256), RawKernel(LONG_NAME, 7, 8, 64), RawKernel("copy", 9, 160, 1024)]
    rows = (
        CorunKernel(kernels[0], 0.0, 0.0, 40.0, 30.0, (Slowed(2, Through.DRAM, 10.0),), ()),
        CorunKernel(kernels[1], 41.0, 41.0, 43.0, 2.0, (), ("32 registers a thread",)),
        CorunKernel(
            kernels[2],
            0.0,
            20.0,
            100.0,
            50.0,
            (Slowed(0, Through.SLOTS, 20.0), Slowed(0, Through.DRAM, 29.5), Slowed(1, Through.L2, 0.5)),
            ("32 registers a thread", "no shared memory"),
        ),
    )
    spans = [
        Span(row.kernel.name, str(number), 0, row.kernel.stream, row.start_us, row.end_us)
        for number, row in enumerate(rows)
    ]
    return Corun(100.0, 50.0, 82.0, rows, fake_execution(spans), "v100-sxm2")
