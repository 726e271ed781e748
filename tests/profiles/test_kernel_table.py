"""Tables of kernels and recordings of profilers: every column is read, and what is wrong is named by its line."""

import json
from pathlib import Path
from typing import Any

import pytest

from iossim.backends.simulator.raw_kernels import Pipe, RawKernel
from iossim.base.errors import DeviceError
from iossim.hardware.load import device
from iossim.profiles.kernel_table import KernelTable, KernelTableError, kernels_of, read_rows

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
BAD_ROWS: dict[str, tuple[str, str, list[str]]] = {
    "threads": ("0,a,8,1025,,,5,,,", "threads", ["1025", "at most 1024"]),
    "block": ("0,a,8,64x32,,,5,,,", "threads", ["2048", "at most 1024"]),
    "no blocks": ("0,a,0,32,,,5,,,", "blocks", ["'0' is less than 1"]),
    "negative blocks": ("0,a,-8,32,,,5,,,", "blocks", ["'-8' is less than 1"]),
    "half a block": ("0,a,8.5,32,,,5,,,", "blocks", ["whole number"]),
    "many blocks": ("0,a,99999999999,32,,,5,,,", "blocks", ["too large"]),
    "more blocks than are simulated": ("0,a,2147483647,32,,,5,,,", "blocks", ["part of the grid"]),
    "empty blocks": ("0,a,,32,,,5,,,", "blocks", ["is empty"]),
    "empty threads": ("0,a,8,,,,5,,,", "threads", ["is empty"]),
    "empty stream": (",a,8,32,,,5,,,", "stream", ["is empty"]),
    "stream by name": ("decode,a,8,32,,,5,,,", "stream", ["'decode' is not a number"]),
    "time": ("0,a,8,32,,,0,,,", "alone_us", ["not positive"]),
    "negative time": ("0,a,8,32,,,-1,,,", "alone_us", ["not positive"]),
    "nan": ("0,a,8,32,,,nan,,,", "alone_us", ["not a number"]),
    "infinite": ("0,a,8,32,,,5,inf,,", "dram_bytes", ["not finite"]),
    "unit": ("0,a,8,32,,,5 us,,,", "alone_us", ["'5 us' is not a number", "in microseconds"]),
    "decimal comma": ('0,a,8,32,,,"5,5",,,', "alone_us", ["'5,5'", "a point for decimals"]),
    "thousands": ('0,a,"1,024",32,,,5,,,', "blocks", ["nothing between thousands"]),
    "thousands below": ("0,a,8,32,,,1_000,,,", "alone_us", ["not a number"]),
    "pipe": ("0,a,8,32,,,5,,1e6,fp46", "pipe", ["'fp46'", "did you mean 'fp64'"]),
    "registers": ("0,a,8,32,256,,5,,,", "registers_per_thread", ["at most 255"]),
    "shared": ("0,a,8,32,,200000,5,,,", "shared_bytes", ["at most 98304"]),
    "fits no SM": ("0,a,8,1024,128,,5,,,", "registers_per_thread", ["does not fit an SM of v100-sxm2"]),
    "no time": ("0,a,8,32,,,,,,", "nothing says how long", ["alone_us", "flops"]),
    "cells": ("0,a,8,32", "has 4 cells", ["the header has 10"]),
    "quote": ('0,"a,8,32,,,5,,,', "is not CSV", []),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows_are_named_by_line(case: str, path: Path) -> None:
    row, column, words = BAD_ROWS[case]
    with pytest.raises(KernelTableError) as caught:
        read(path, f"# a comment\n{HEADER}0,good,8,32,,,5,,,\n\n{row}\n")
    assert str(caught.value).startswith(f"{path}:5: {column}")
    assert "; " in str(caught.value)  # and then the remedy
    for word in words:
        assert word in str(caught.value)


BAD_TABLES = {
    "empty": ("", "is empty"),
    "header": (HEADER, "has no rows"),
    "column": ("stream,blocks,threds,alone_us\n0,1,32,5\n", ":1: column 'threds' is unknown; did you mean 'threads'"),
    "nameless column": ("stream,blocks,threads,alone_us,\n0,1,32,5,\n", "a column has no name"),
    "twice": ("stream,stream\n0,1\n", "'stream' is there twice"),
    "no stream": ("blocks,threads,alone_us\n1,32,5\n", "column 'stream' is missing"),
    "no grid": ("stream,threads,alone_us\n0,32,5\n", "column 'blocks' is missing"),
    "nothing asked": ("stream,blocks,threads\n0,1,32\n", "no column says how long"),
    "semicolons": ("stream;blocks;threads;alone_us\n0;1;32;5\n", "separated by semicolons"),
    "tabs": ("stream\tblocks\n0\t1\n", "separated by tabs"),
    "operator": ("stream,op,rows,cols\n0,relu,4,\n", ":2: op: relu needs the column cols"),
    "unknown operator": ("stream,op,rows,cols\n0,rellu,4,4\n", ":2: op: op 'rellu' is unknown; did you mean 'relu'"),
    "size": ("stream,op,rows,cols\n0,relu,4,4\n0,relu,4,x\n", ":3: op: cols is 'x'"),
    "both": ("stream,op,rows,cols,blocks\n0,relu,4,4,7\n", ":2: blocks: is given in addition to op"),
    "size of no operator": ("stream,op,rows,blocks,threads,alone_us\n0,,4,1,32,5\n", ":2: rows: is of operators"),
    "precision": ("stream,op,rows,cols,dtype\n0,relu,4,4,bf16\n", ":2: op: "),
    "two precisions": ("stream,op,rows,cols,dtype,precision\n0,relu,4,4,,\n", "say one thing"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_tables(case: str, path: Path) -> None:
    text, words = BAD_TABLES[case]
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
