"""Devices of a few SMs, and random work for them."""

from typing import Any

from cpus import cpu
from hypothesis import strategies as st

from iossim.backends.simulator.events.demand import BlockDemand
from iossim.backends.simulator.events.program import Instruction, IssuedKernel, IssueKernel
from iossim.backends.simulator.kernel_work import KernelWork
from iossim.hardware.load import device
from iossim.hardware.profile import DeviceProfile, with_values


def with_facts(profile: DeviceProfile, **facts: Any) -> DeviceProfile:
    """The device with other datasheet facts."""
    sheet = profile.datasheet
    changed = {name: getattr(sheet, name).model_copy(update={"value": value}) for name, value in facts.items()}
    return profile.model_copy(update={"datasheet": sheet.model_copy(update=changed)})


def small_device(sms: int, like: str = "v100-sxm2") -> DeviceProfile:
    """A device of few SMs."""
    return with_facts(device(like), sm_count=sms)


def small_cpu(cores: int, interference: float = 0.0) -> DeviceProfile:
    """A CPU of few cores, a block each, on which kernels that meet disturb each other by ``interference``."""
    return with_values(cpu(sm_count=cores), {"interference": interference})


def work(name: str = "kernel", **fields: Any) -> KernelWork:
    """A kernel of one-warp blocks that ask for nothing but what is given."""
    defaults: dict[str, Any] = {
        "blocks": 1,
        "threads_per_block": 32,
        "registers_per_thread": 32,
        "shared_bytes_per_block": 0,
        "issue_us": 0.0,
        "least_us": 0.0,
        "l2_us": 0.0,
        "dram_us": 0.0,
        "gap_us": 0.0,
    }
    return KernelWork(name, **{**defaults, **fields})


times = st.floats(0.01, 20.0)

#: What few kernels use: pipes, the whole of L2, and room there.
fewer_use = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {
            "pipe": st.sampled_from(["fp32", "fp64"]),
            "pipe_us": times,
            "l2_device_us": st.floats(0.01, 300.0),
            "footprint_bytes": st.sampled_from([1e5, 2e6, 5e6]),
            "kept_us": st.floats(0.01, 300.0),
            "reach": st.sampled_from([0.5, 1.0]),
        }
    ),
)


@st.composite
def works(draw: st.DrawFn, most_blocks: int = 60) -> KernelWork:
    """Kernels of all sorts: bound by issue, latency, L2, DRAM or power, of few or many blocks an SM."""
    issue_us = draw(times)
    return KernelWork(
        f"kernel{draw(st.integers(0, 9))}",
        blocks=draw(st.integers(1, most_blocks)),
        threads_per_block=draw(st.sampled_from([32, 64, 128, 160, 256, 512, 1024])),
        registers_per_thread=draw(st.sampled_from([16, 32, 37, 64])),
        shared_bytes_per_block=draw(st.sampled_from([0, 0, 1_000, 8_448, 16_640, 33_000])),
        issue_us=issue_us,
        least_us=issue_us * draw(st.floats(1.0, 6.0)),
        l2_us=draw(st.one_of(st.just(0.0), times)),
        dram_us=draw(st.one_of(st.just(0.0), st.floats(0.01, 300.0))),
        gap_us=draw(st.sampled_from([0.0, 1.0, 5.0])),
        power_us=draw(st.one_of(st.just(0.0), st.floats(0.01, 300.0))),
        **draw(fewer_use),
    )


def issue(kernel: KernelWork, profile: DeviceProfile, stream: int = 0, host_us: float = 0.0) -> IssueKernel:
    return IssueKernel(IssuedKernel(BlockDemand.of(kernel, profile), host_us), stream, f"unit of {kernel.name}", 0)


@st.composite
def programs(draw: st.DrawFn, profile: DeviceProfile, most_blocks: int = 60) -> list[Instruction]:
    """Kernels issued to up to four streams."""
    return [
        issue(draw(works(most_blocks)), profile, draw(st.integers(0, 3)), draw(st.sampled_from([0.0, 0.0, 2.5, 10.0])))
        for _ in range(draw(st.integers(1, 7)))
    ]
