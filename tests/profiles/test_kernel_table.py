"""Tables of kernels and recordings of profilers: every column is read, and what is wrong is named by its line."""

import json
from pathlib import Path
from typing import Any

import pytest
from case_files import cases

from iossim.backends.simulator.raw_kernels import Pipe, RawKernel
from iossim.base.errors import DeviceError
from iossim.hardware.load import device
from iossim.profiles.kernel_table import KernelTable, KernelTableError, kernels_of, read_rows

CASES = cases(__file__, "mistakes.yaml")

EXAMPLE_CPU = Path(__file__).resolve().parents[2] / "examples" / "cpu.yaml"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "KERNELS.csv"


def read(path: Path, text: str, name: str = "v100-sxm2") -> KernelTable:
    path.write_text(text)
    return kernels_of(read_rows(path), path, device(name))


def test_every_column(path: Path) -> None:
    table = read(
        path,
        "# by hand\nstream,name,blocks,threads,registers_per_thread,shared_bytes,alone_us,dram_bytes,l2_bytes,"
        "footprint_bytes,flops,pipe\n"
        "3,gemm,80,256,64,1024,12.5,1e6,2e6,5e5,3e8,Tensor\n"
        "0,, 7 ,32,,,,,,,4e6,\n",
    )
    assert table == KernelTable(
        (
            RawKernel("gemm", 3, 80, 256, 64, 1024, 12.5, 1e6, 2e6, 5e5, 3e8, Pipe.TENSOR),
            RawKernel("kernel 1", 0, 7, 32, flops=4e6),
        )
    )


@pytest.mark.parametrize(
    ("blocks", "threads", "counts"),
    [
        ("5000", "1024", (5000, 1024)),
        ('"[5000,1,1]"', '"[128,4,1]"', (5000, 512)),
        ('"(50, 10, 2)"', "32x4", (1000, 128)),
        ("50x10x2", "16 x 16", (1000, 256)),
        ("5e3", "64.0", (5000, 64)),
    ],
)
def test_extents(blocks: str, threads: str, counts: tuple[int, int], path: Path) -> None:
    (kernel,) = read(path, f"stream,blocks,threads,alone_us\n0,{blocks},{threads},1\n").kernels
    assert (kernel.blocks, kernel.threads) == counts


def test_operators_run_as_their_fastest_kernels(path: Path) -> None:
    kernels = read(
        path,
        "stream,name,op,m,n,k,batch,rows,cols,blocks,threads,alone_us,precision\n"
        "0,dense,linear,256,1024,1024,1,,,,,,\n"
        "0,,relu,,,,,512,512,,,,\n"
        "1,raw,,,,,,,,80,128,5,\n",
    ).kernels
    assert [kernel.stream for kernel in kernels] == [*[0] * (len(kernels) - 1), 1]
    dense = [kernel for kernel in kernels if kernel.name.startswith("dense: ")]
    assert len(dense) > 1
    assert all(kernel.kernel is not None and kernel.blocks == kernel.kernel.blocks for kernel in dense)
    assert [kernel.name for kernel in kernels[-2:]] == ["relu", "raw"]
    assert kernels[-1].kernel is None


HEADER = "stream,name,blocks,threads,registers_per_thread,shared_bytes,alone_us,dram_bytes,flops,pipe\n"


@pytest.mark.parametrize("case", CASES["rows"])
def test_bad_rows_are_named_by_line(case: str, path: Path) -> None:
    row, column, words = CASES["rows"][case]
    with pytest.raises(KernelTableError) as caught:
        read(path, f"# a comment\n{HEADER}0,good,8,32,,,5,,,\n\n{row}\n")
    assert str(caught.value).startswith(f"{path}:5: {column}")
    assert "; " in str(caught.value)  # and then the remedy
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("case", CASES["tables"])
def test_bad_tables(case: str, path: Path) -> None:
    text, words = CASES["tables"][case]
    with pytest.raises(KernelTableError, match=r"KERNELS\.csv") as caught:
        read(path, text)
    assert words in str(caught.value)


def test_what_is_no_table_or_no_gpu(path: Path) -> None:
    for content, words in ((None, "cannot read kernels"), (b"\x80\xfe\x00", "not text")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(KernelTableError, match=words):
            read_rows(path)
    with pytest.raises(DeviceError, match="is not a GPU"):
        read(path, HEADER + "0,a,8,32,,,5,,,\n", str(EXAMPLE_CPU))


NSYS_HEADER = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),"
    "Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name\n"
)
NSYS = (
    "Processing [run.sqlite] with [cuda_gpu_trace.py]...\n"
    + NSYS_HEADER
    + '9000,2500,12,64,2,1,128,1,1,32,0.000,0.033,,,,,"GPU (0)",1,,14,"void b<int, 2>(float*)"\n'
    + '1000,2000,11,,,,,,,,,,1.000,9.0,Pageable,Device,"GPU (0)",1,,7,[CUDA memcpy Host-to-Device]\n'
    + '4000,4500,13,5000,1,1,128,4,1,24,0.001,0.000,,,,,"GPU (0)",1,,7,a\n'
)


def test_nsight_systems(path: Path) -> None:
    table = read(path, NSYS)
    assert table.kernels == (
        RawKernel("a", 7, 5000, 512, 24, 1000, 4.5),
        RawKernel("void b<int, 2>(float*)", 14, 128, 128, 32, 33000, 2.5),
    )
    assert [note.partition(" ")[0] for note in table.notes] == ["Nsight", "copies"]
    in_microseconds = NSYS.replace("Start (ns)", "Start (us)").replace("Duration (ns)", "Duration (us)")
    assert [kernel.alone_us for kernel in read(path, in_microseconds).kernels] == [4500, 2500]
    beside = read(path, NSYS.replace("9000,2500", "7000,2500"))
    assert "2 of 2 kernels ran concurrently with others when recorded" in " ".join(beside.notes)
    two = read(path, NSYS.replace('"GPU (0)",1,,14', '"GPU (0)",2,,7'))
    assert [kernel.stream for kernel in two.kernels] == [0, 1]
    assert "streams of 2 contexts are numbered" in " ".join(two.notes)


NCU = (
    "==PROF== Connected to process 1\n"
    '"ID","Kernel Name","Context","Stream","Block Size","Grid Size","Device","gpu__time_duration.sum",'
    '"launch__registers_per_thread","launch__shared_mem_per_block_static","launch__shared_mem_per_block_dynamic",'
    '"dram__bytes_read.sum","dram__bytes_write.sum","lts__t_bytes.sum",'
    '"smsp__sass_thread_inst_executed_op_fadd_pred_on.sum","smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"\n'
    '"","","","","","","","ns","register/thread","byte/block","Kbyte/block","Mbyte","Kbyte","byte","inst","inst"\n'
    '"0","b(int)","1","14","(64, 2, 1)","(5000, 1, 1)","0","2,500","48","16","1.02","1.5","500","3,000,000","10","1,000"\n'
    '"1","a","1","7","(32, 1, 1)","(8, 1, 1)","0","900","","","","","","","0","0"\n'
)


def test_nsight_compute(path: Path) -> None:
    """Bytes and arithmetic too; the order is that of the launches."""
    table = read(path, NCU)
    assert table.kernels == (
        RawKernel("b(int)", 14, 5000, 128, 48, 1036, 2.5, 2e6, 3e6, None, 2020.0, Pipe.FP32),
        RawKernel("a", 7, 8, 32, alone_us=0.9),
    )
    assert table.notes == ()


def kineto(**changes: Any) -> dict[str, Any]:
    told = {
        "device": 0,
        "context": 1,
        "stream": 7,
        "registers per thread": 40,
        "shared memory": 2048,
        "grid": [10, 2, 1],
        "block": [64, 2, 1],
    }
    return {"ph": "X", "cat": "kernel", "name": "k", "ts": 5, "dur": 3.25, "args": told | changes}


def trace(*events: dict[str, Any]) -> str:
    return json.dumps({"traceEvents": events})


def test_kineto(path: Path) -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 1, "dur": 2, "args": {}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy", "ts": 1, "dur": 2, "args": {"stream": 7}},
        kineto(),
        {**kineto(stream=20), "name": "first", "ts": 1},
    ]
    table = read(path, trace(*events))
    assert table.kernels == (
        RawKernel("first", 20, 20, 128, 40, 2048, 3.25),
        RawKernel("k", 7, 20, 128, 40, 2048, 3.25),
    )
    assert table.notes == ("copies and memsets are left out: 1",)
    assert read(path, json.dumps(events)) == table


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NSYS.replace("128,4,1,24", "128,16,1,24"), ":5: threads: 2048"),
        (NSYS.replace("Duration (ns)", "Duration (ticks)"), ":2: the unit of 'Duration' is 'ticks'"),
        (NSYS.replace("BlkZ", "Block"), ":2: the column 'BlkZ' is missing"),
        (NSYS.replace("4000,4500", "4000,"), ":5: Duration: '' is empty"),
        (NSYS.replace("4000,4500", "4000,0"), ":5: alone_us: '0' is not positive"),
        (NSYS.replace('"GPU (0)",1,,14', '"GPU (1)",1,,14'), "kernels of 2 devices, GPU (0), GPU (1)"),
        (NCU.replace("(32, 1, 1)", "(32, 64, 1)"), ":5: threads: 2048"),
        (NCU.replace('"ns"', '"cycles"'), ":3: the unit of 'gpu__time_duration.sum' is 'cycles'"),
        (NCU.replace('"900"', '"nan"'), ":5: gpu__time_duration.sum: 'nan' is not a number"),
        (NCU.replace('"900"', '"0,9"'), ":5: gpu__time_duration.sum: '0,9' is not a number"),
        (NCU.replace('"900"', '""'), ":5: alone_us"),
        (NCU.replace("_duration.sum", "_elapsed.max"), ":2: the column 'gpu__time_duration.sum'"),
        (NCU.replace('"","","","","","",""', '"7","","","","","",""'), ":3: has no units"),
        (trace(kineto(), kineto(block=[1024, 2, 1])), ": GPU event 2: threads: 2048"),
        (trace(kineto(), kineto(grid=None)), ": GPU event 2: blocks: is empty"),
        (trace(kineto(), {**kineto(), "dur": None}), ": GPU event 2: alone_us: 'nan' is not a number"),
        (trace(kineto())[:-9], "no whole trace"),
        ('{"traceEvents": 3}', "no list"),
        (trace(), "no kernels"),
    ],
)
def test_bad_recordings(text: str, words: str, path: Path) -> None:
    with pytest.raises(KernelTableError) as caught:
        read(path, text)
    assert str(caught.value).startswith(str(path))
    assert words in str(caught.value)
