"""Pairs of kernels as three tables have them, and the SMs on which blocks ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from evidence.concurrency import block_placement
from evidence.concurrency.pairs import (
    GRAPHS_FILE,
    PREFILL_FILE,
    STREAMS_FILE,
    read_graph_pairs,
    read_prefill_pairs,
    read_stream_pairs,
)
from iossim.measurements.measurement import MeasurementError

GRAPH_COLUMNS = (
    "device,model,op_a,op_b,shape_a_chw,shape_b_chw,repeats_of_each_op_in_its_cuda_graph,alone_a_ms,alone_b_ms,"
    "together_a_completion_ms,together_b_completion_ms,makespan_ms_from_dilation,makespan_dilation,measured_pair_speedup\n"
)
STREAM_COLUMNS = (
    "device,trace,kernel_a,a_grid,a_block,a_regs_per_thread,a_smem_static_B,a_smem_dynamic_B,kernel_b,b_grid,b_block,"
    "b_regs_per_thread,b_smem_static_B,b_smem_dynamic_B,a_start_us,a_duration_us,b_start_us,b_duration_us,overlap_us,"
    "makespan_us\n"
)


def stream_row(first: str, second: str, start_us: float, first_us: float, overlap_us: float, second_us: float) -> str:
    grids = (f'{name},"[{10 * len(name)},1,1]","[128,4,1]",24,8,0' for name in (first, second))
    begin_us = start_us + first_us - overlap_us
    makespan_us = begin_us + second_us - start_us
    return f"X,t,{','.join(grids)},{start_us},{first_us},{begin_us},{second_us},{overlap_us},{makespan_us}\n"


def test_times_in_graphs_are_per_repeat(tmp_path: Path) -> None:
    file = tmp_path / GRAPHS_FILE
    file.write_text(GRAPH_COLUMNS + "X,Y,add,conv,,8x4x4,100,0.001,0.03,0.002,0.031,0.031,1.03,1.1\n")
    (pair,) = read_graph_pairs(file)
    small, large = pair.kernels
    assert (small.alone_us, small.slowdown, large.shape) == (1.0, pytest.approx(2.0), "8x4x4")
    assert (pair.repeats, pair.makespan_us, pair.title) == (100, 31.0, "add beside conv")
    file.write_text(GRAPH_COLUMNS + "X,Y,add,conv,,8x4x4,,0.001,0.03,0.002,0.031,0.031,1.03,1.1\n")
    with pytest.raises(MeasurementError, match="line 2: repeats_of_each_op_in_its_cuda_graph is empty"):
        read_graph_pairs(file)


def test_runs_of_a_pair_on_streams_are_one_by_their_medians(tmp_path: Path) -> None:
    file = tmp_path / STREAMS_FILE
    runs = [stream_row("a", "bb", 1000.0 * n, 100.0 + n, 10.0, 50.0) for n in (1, 2, 9)]
    file.write_text(STREAM_COLUMNS + "".join(runs) + stream_row("bb", "ccc", 1.0, 48.0, 1.0, 30.0))
    pair, other = read_stream_pairs(file)
    first, second = pair.kernels
    assert (pair.samples, first.blocks, first.threads, first.shared_bytes) == (3, 10, 512, 8)
    assert (first.alone_us, first.together_us) == (102.0, 102.0)
    # It comes first elsewhere, and there it runs as alone; what never comes first takes what it took behind another.
    assert second.alone_us == 48.0
    assert other.kernels[1].alone_us == 30.0
    assert second.together_us == pair.makespan_us == pytest.approx(142.0)


def test_the_shared_tables_are_read_whole(shared: Path) -> None:
    folder = shared / "data" / "concurrency"
    assert len(read_graph_pairs(folder / GRAPHS_FILE)) == 34
    streams = read_stream_pairs(folder / STREAMS_FILE)
    assert [pair.samples for pair in streams] == [10] * 10
    prefill = read_prefill_pairs(folder / PREFILL_FILE)
    assert len(prefill) == 27
    assert {pair.sms for pair in prefill} == {None, (54, 54), (32, 76)}
    placed = block_placement.read_placements(folder / block_placement.FILE)
    assert [(one.name, sorted(one.sms)) for one in placed] == [
        (name, list(range(170))) for name in ("k_fma32", "k_copy_tb")
    ]
