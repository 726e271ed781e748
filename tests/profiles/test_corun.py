"""Kernels side by side: who slows whom through what, and the command."""

import csv
import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from case_files import cases
from command_line import printed, printed_json, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from small_devices import with_facts
from trace_format import check_trace

from iossim.backends.simulator.kernel_model import KernelModel
from iossim.backends.simulator.raw_kernels import Pipe, RawKernel
from iossim.base.errors import OptionError
from iossim.execution.engine import Engine
from iossim.hardware.load import device
from iossim.hardware.lowering.unit import lower_unit
from iossim.models.load import load
from iossim.profiles.corun import Corun, Through, corun_kernels
from iossim.report.schemas import schema

CASES = cases(__file__, "mistakes.yaml")

#: As the recorded one ran.
V100 = with_facts(device("v100-sxm2"), boost_clock_ghz=1.38)


def pair(kernel: RawKernel) -> list[RawKernel]:
    return [replace(kernel, stream=stream) for stream in (0, 1)]


def ratio(run: Corun) -> float:
    return run.makespan_us / run.alone_us


@pytest.mark.parametrize(("blocks", "measured"), [(80, 1.0), (160, 2.0)])
def test_slots_are_held_in_the_order_of_launches(blocks: int, measured: float) -> None:
    """The V100's sleeping blocks of 1024 threads: 80 + 80 fit, of 160 + 160 the second wait for the first."""
    run = corun_kernels(pair(RawKernel("sleep", 0, blocks, 1024, alone_us=102_400.0)), V100)
    assert ratio(run) == pytest.approx(measured, rel=1e-3)
    first, second = run.kernels
    assert first.slowed_by == ()
    assert [(one.by, one.through) for one in second.slowed_by] == [(0, Through.SLOTS)] * (measured > 1)


@pytest.mark.parametrize(
    ("parallel", "alone_us", "measured"),
    [(1, 118_947.0, 1.046), (2, 123_465.0, 1.897), (3, 179_321.0, 1.930), (4, 236_975.0, 1.947)],
)
def test_the_fp64_pipe_of_a_v100(parallel: int, alone_us: float, measured: float) -> None:
    """Independent multiplications in a thread: one fills half of the pipe, more fill it."""
    flops = 2.0 * 80 * 128 * 20e6 * parallel
    kernel = RawKernel("multiply", 0, 80, 128, alone_us=alone_us, flops=flops, pipe=Pipe.FP64)
    run = corun_kernels(pair(kernel), V100)
    assert ratio(run) == pytest.approx(measured, rel=0.05)
    assert {one.through for row in run.kernels for one in row.slowed_by} <= {Through.PIPE}
    # Beside another pipe nothing is lost.
    assert ratio(corun_kernels([kernel, replace(kernel, stream=1, pipe=Pipe.FP32)], V100)) == pytest.approx(
        1.0, rel=1e-3
    )


def test_a_copy_beside_arithmetic() -> None:
    copy = RawKernel("copy", 0, 80, 1024, alone_us=326_442.0, dram_bytes=2.0 * 2**31 * 40)
    multiply = RawKernel("multiply", 1, 80, 128, alone_us=125_251.0, flops=1.638e12, pipe=Pipe.FP32)
    assert ratio(corun_kernels([copy, multiply], V100)) == pytest.approx(1.0, rel=1e-3)
    both = corun_kernels(pair(copy), V100)
    # Each uses 0.63 of what copies reach of DRAM.
    assert ratio(both) == pytest.approx(1.26, rel=0.01)
    assert [(one.by, one.through) for row in both.kernels for one in row.slowed_by] == [
        (1, Through.DRAM),
        (0, Through.DRAM),
    ]


def test_shares_of_the_sms() -> None:
    # Four blocks an SM fill it: on half of the SMs two waves, and none waits for the other.
    kernels = pair(RawKernel("sleep", 0, 160, 1024, alone_us=1_000.0))
    run = corun_kernels(kernels, V100, sm_share=(50, 50))
    assert [(row.alone_us, row.slowed_by) for row in run.kernels] == [(2_000.0, ())] * 2
    # A copy by half of the SMs draws more than half of the bandwidth: two share what there is.
    copies = pair(RawKernel("copy", 0, 640, 1024, alone_us=1_000.0, dram_bytes=830e6))
    run = corun_kernels(copies, V100, sm_share=(50, 50))
    assert 1_000.0 < run.kernels[0].alone_us < 1_300.0
    assert run.makespan_us == pytest.approx(2_000.0, rel=0.02)


@pytest.mark.parametrize(("shares", "told"), CASES["shares"])
def test_impossible_shares(shares: tuple[float, ...], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        corun_kernels(pair(RawKernel("sleep", 0, 160, 1024, alone_us=1_000.0)), V100, sm_share=shares)


def test_streams_wait_for_the_host() -> None:
    kernels = [RawKernel("short", stream, 1, 32, alone_us=1.0) for stream in (0, 1) for _ in range(3)]
    launched = corun_kernels(kernels, V100, Engine.PAPER)
    assert launched.makespan_us >= 6 * V100.engine.bare_launch_us
    starts = [row.ready_us for row in launched.kernels]
    assert starts == sorted(starts)
    graph = corun_kernels(kernels, V100)
    assert graph.makespan_us < launched.makespan_us
    assert graph.sequential_us == pytest.approx(2 * graph.alone_us)


def test_a_library_kernel_takes_what_it_is_priced_with() -> None:
    network = load("squeezenet")
    (candidates, *_) = lower_unit(network, network.units[0], V100)
    kernel = max((kernel for one in candidates for kernel in one.kernels), key=lambda kernel: kernel.flops)
    model = KernelModel(V100)
    raw = RawKernel("conv", 0, kernel.blocks, kernel.threads_per_block, kernel=kernel)
    (row,) = corun_kernels([raw], V100).kernels
    assert row.alone_us == pytest.approx(model.price(kernel).alone_us - model.rates.gap_us, rel=0.02)
    assert row.inferred == ()


@st.composite
def raw_kernels(draw: st.DrawFn) -> RawKernel:
    """Kernels of which most use some resource a good deal."""
    alone_us = draw(st.floats(5.0, 500.0))
    part = st.one_of(st.none(), st.floats(0.0, 0.9))
    dram, l2, arithmetic = draw(part), draw(part), draw(part)
    pipe = draw(st.sampled_from(Pipe))
    peak = {Pipe.FP32: 14e6, Pipe.FP64: 7e6, Pipe.TENSOR: 110e6, Pipe.INT: 14e6}[pipe]
    return RawKernel(
        draw(st.sampled_from(["a", "b"])),
        draw(st.integers(0, 2)),
        draw(st.integers(1, 700)),
        draw(st.sampled_from([32, 128, 256, 1024])),
        draw(st.sampled_from([None, 32, 64])),
        draw(st.sampled_from([None, 0, 16_384])),
        alone_us,
        None if dram is None else dram * 9e5 * alone_us,
        None if l2 is None else l2 * 2e6 * alone_us,
        draw(st.sampled_from([None, 1e5, 3e6])),
        None if arithmetic is None else arithmetic * peak * 0.9 * alone_us,
        pipe,
    )


@settings(max_examples=20)
@given(st.lists(raw_kernels(), min_size=1, max_size=5), st.sampled_from([Engine.GRAPH, Engine.PAPER]), st.booleans())
def test_what_is_told_of_each_loss_sums_up(kernels: list[RawKernel], engine: Engine, has_shares: bool) -> None:
    streams = len({kernel.stream for kernel in kernels})
    run = corun_kernels(kernels, V100, engine, [100 / streams] * streams if has_shares else None)
    assert run.makespan_us == pytest.approx(max(row.end_us for row in run.kernels))
    assert run.alone_us <= run.sequential_us * (1 + 1e-9)
    for number, row in enumerate(run.kernels):
        longer_us = row.end_us - row.ready_us - row.alone_us
        assert math.fsum(one.us for one in row.slowed_by) == pytest.approx(max(0.0, longer_us), rel=1e-6, abs=1e-5)
        assert all(one.us > 0 and one.by != number for one in row.slowed_by)
        # None is slowed by its own stream, which it waits for anyway.
        assert all(kernels[one.by].stream != row.kernel.stream for one in row.slowed_by)


@given(raw_kernels())
def test_by_itself_a_kernel_takes_its_time_alone(kernel: RawKernel) -> None:
    (row,) = corun_kernels([kernel], V100).kernels
    assert row.alone_us == pytest.approx(kernel.alone_us, rel=1e-9)
    assert row.end_us - row.ready_us == pytest.approx(kernel.alone_us, rel=1e-9)
    assert row.slowed_by == ()


EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "corun"
#: What each example ran on, how long it took side by side, and how far from that the simulated time may be.
MEASURED = {
    "a100_prefill_decode.csv": ("a100-sxm-80gb", 6018.6, 0.02),
    "a5000_convolution_batch_norm.csv": ("rtx-a5000", 113.1, 0.16),
    "gtx1080ti_upsample_batch_norm.nsys.csv": ("gtx-1080-ti", 4574.1, 0.01),
    "rtx5090_copies.csv": ("rtx-5090", 223415.0, 0.27),
    "v100_fp64.csv": ("v100-pcie-32gb", 124381.0 + 461351.0, 0.02),
    "v100_sleep.csv": ("v100-pcie-32gb", 204817.0, 0.01),
}
PAIR = "stream,name,blocks,threads,alone_us\n0,a,160,1024,100\n1,b,160,1024,100\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test runs in a folder of its own, with a table of two kernels that fill a V100 each."""
    monkeypatch.chdir(tmp_path)
    Path("KERNELS.csv").write_text(PAIR)
    return tmp_path


def test_all_examples_are_tested() -> None:
    assert {path.name for path in EXAMPLES.iterdir()} == set(MEASURED)


@pytest.mark.parametrize("name", MEASURED)
def test_examples(name: str) -> None:
    device, measured_us, tolerance = MEASURED[name]
    document = printed_json(f"corun {EXAMPLES / name} --device {device} --json")
    assert document["makespan_us"] == pytest.approx(measured_us, rel=tolerance)
    assert list(Draft202012Validator(schema("corun")).iter_errors(document)) == []
    kernels = document["kernels"]
    assert document["alone_us"] <= document["makespan_us"]
    assert document["makespan_us"] == pytest.approx(max(kernel["end_us"] for kernel in kernels))
    for stream in {kernel["stream"] for kernel in kernels}:
        own = [kernel for kernel in kernels if kernel["stream"] == stream]
        for before, after in pairwise(own):
            assert before["end_us"] <= after["start_us"]
    for kernel in kernels:
        assert kernel["start_us"] < kernel["end_us"]
        for slowed in kernel["slowed_by"]:
            assert kernels[slowed["by"]]["stream"] != kernel["stream"]


def test_the_command_takes_shares_of_the_sms() -> None:
    """Prefill and decode of the example on 54 SMs each, as measured in green contexts."""
    table = EXAMPLES / "a100_prefill_decode.csv"
    document = printed_json(f"corun {table} -d a100-sxm-80gb --sm-share 50,50 --json")
    *_, prefill, decode = document["kernels"]
    assert prefill["end_us"] == pytest.approx(9558.5, rel=0.15)
    assert decode["end_us"] == pytest.approx(1605.1, rel=0.15)
    assert decode["slowed_by"] == []


def test_what_is_printed() -> None:
    text = printed("corun KERNELS.csv -d v100-sxm2 --streams")
    assert text.startswith("KERNELS.csv on v100-sxm2, streams, launched by the host")
    for words in ("stream 0", " 0 a ===", "stream 1", "Concurrent: ", "for the streams one after"):
        assert words in text
    assert "one CUDA graph" in printed("corun KERNELS.csv -d v100-sxm2 --graph")


def test_many_rows_are_cut() -> None:
    Path("KERNELS.csv").write_text(PAIR + "0,c,8,32,1\n" * 60)
    short, whole = (printed(f"corun KERNELS.csv -d v100-sxm2 {option}") for option in ("", "--all"))
    assert "the 40 of 62 kernels that lost most time are shown (--all shows all)" in " ".join(short.split())
    assert len(whole.splitlines()) > len(short.splitlines()) + 15


NSYS = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,StcSMem (MB),Device,Ctx,Strm,Name\n"
    "1000,50000,1,216,1,1,256,1,1,0.131,NVIDIA A100-SXM4-80GB (0),1,7,a\n"
    "12000,40000,2,216,1,1,256,1,1,0,NVIDIA A100-SXM4-80GB (0),1,20,b\n"
    "60000,4000,3,216,1,1,256,1,1,0,NVIDIA A100-SXM4-80GB (0),1,7,c\n"
)


def test_a_recording_is_priced_on_its_own_device_and_tells_how_long_it_took() -> None:
    Path("nsys.csv").write_bytes(NSYS.encode("utf-16"))  # as PowerShell redirects it
    document = printed_json("corun nsys.csv --json")
    assert list(Draft202012Validator(schema("corun")).iter_errors(document)) == []
    assert (document["device"], document["recorded_us"]) == ("a100-sxm-80gb", 63.0)
    assert document["difference_percent"] == pytest.approx(100 * (document["makespan_us"] / 63 - 1))
    assert any("2 of 3 kernels ran concurrently with others" in note for note in document["notes"])
    assert not any("recorded on" in note for note in document["notes"])
    text = " ".join(printed("corun nsys.csv").split())
    assert "Recorded: 63.0 us from the first start to the last end, 8.0 us of it without a kernel; simulated" in text
    assert printed_json("corun KERNELS.csv -d t4 --json")["recorded_us"] is None


def test_a_recording_on_another_device() -> None:
    """Kernels that do not fit are the fault of the device, not of a cell."""
    Path("nsys.csv").write_text(NSYS)
    line = refused("corun nsys.csv -d v100-sxm2")
    assert "shared_bytes: 131000 is more than a block has on v100-sxm2: at most 98304" in line
    assert "it was recorded on a100-sxm-80gb: give that --device" in line
    Path("nsys.csv").write_text(NSYS.replace("0.131", "0"))
    notes = printed_json("corun nsys.csv -d v100-sxm2 --json")["notes"]
    assert "recorded on a100-sxm-80gb, not on v100-sxm2" in notes[0]
    Path("nsys.csv").write_text(NSYS.replace("A100-SXM4-80GB", "CMP 170HX"))
    assert "was recorded on cmp-170hx, which has no profile" in refused("corun nsys.csv")


def test_files() -> None:
    pytest.importorskip("vl_convert")
    document = printed_json("corun KERNELS.csv -d v100-sxm2 --json --out out")
    names = ["corun.json", "kernels.csv", "timeline.png", "timeline.svg", "trace.json"]
    assert sorted(path.name for path in Path("out").iterdir()) == names
    assert json.loads(Path("out/corun.json").read_text()) == document
    rows = list(csv.DictReader(Path("out/kernels.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == ["a", "b"]
    tracks = check_trace(Path("out/trace.json").read_text())
    assert [[event["name"] for event in events] for events in tracks.values()] == [["a"], ["b"]]
    printed("corun KERNELS.csv -d v100-sxm2 --out few --no-plot --no-trace")
    assert sorted(path.name for path in Path("few").iterdir()) == ["corun.json", "kernels.csv"]


@pytest.mark.parametrize(("options", "words"), CASES["options"])
def test_bad_options(options: str, words: list[str]) -> None:
    line = refused(f"corun KERNELS.csv {options}")
    for word in words:
        assert word in line


def test_bad_rows_are_named_by_line(folder: Path) -> None:
    Path("KERNELS.csv").write_text(PAIR + "1,c,8,2048,5\n")
    line = refused("corun KERNELS.csv -d v100-sxm2 --out out")
    assert line.startswith("error: KERNELS.csv:4: threads: 2048 is more than a block has")
    assert "cannot read kernels none.csv" in refused("corun none.csv -d v100-sxm2")
    assert [path.name for path in folder.iterdir()] == ["KERNELS.csv"]
