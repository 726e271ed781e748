"""Microbenchmarks as two tables have them: rows that belong together are joined, and a bad one is named by its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from evidence.concurrency.microbenchmarks import (
    RTX_5090_FILE,
    V100_FILE,
    Microbenchmark,
    MicroKernel,
    percent_in,
    read_rtx_5090,
    read_v100,
)
from iossim.measurements.measurement import MeasurementError

V100_COLUMNS = (
    "device,experiment,how_shared,kernel_a,kernel_b,blocks_a,threads_a,blocks_b,threads_b,bytes_per_kernel_or_block,"
    "iterations_in_kernel,mode,n_trials,avg_ms,median_ms,min_ms,max_ms,bandwidth_GiB_per_s_read_plus_write,note\n"
)


def v100_table(path: Path, *rows: str) -> Path:
    file = path / V100_FILE
    file.write_text(V100_COLUMNS + "".join(f"V100,{row}\n" for row in rows))
    return file


def v100_row(mode: str, median_ms: str, second: str = "sleep,80,1024", iterations: str = "") -> str:
    kernel, blocks, threads = second.split(",") if second else ("", "", "")
    return f"slots,two,sleep,{kernel},80,1024,{blocks},{threads},,{iterations},{mode},10,1,{median_ms},1,1,,"


def test_what_is_alone_in_one_row_and_together_in_another_is_one_experiment(tmp_path: Path) -> None:
    file = v100_table(tmp_path, v100_row("alone", "2", ""), v100_row("sequential", "4"), v100_row("together", "3"))
    kernel = MicroKernel("sleep", 80, 1024, 2000.0)
    (found,) = read_v100(file)
    assert found == Microbenchmark(
        "v100-sxm2", "v100_microbenchmarks", 4, "slots", "two", (kernel, kernel), 3000.0, 4000.0
    )


def test_equal_kernels_take_half_of_their_sequence_alone(tmp_path: Path) -> None:
    file = v100_table(tmp_path, v100_row("sequential", "4"), v100_row("together", "3"))
    assert [kernel.alone_us for kernel in read_v100(file)[0].kernels] == [2000.0, 2000.0]


def test_iterations_are_those_of_the_first_kernel(tmp_path: Path) -> None:
    rows = v100_row("sequential", "4"), v100_row("together", "3", iterations="fp32 7; sleep 40")
    assert read_v100(v100_table(tmp_path, *rows))[0].iterations == 40


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([v100_row("together", "3")], "line 2: no row has sleep alone"),
        ([v100_row("both", "3")], "line 2: mode 'both' is none of alone, sequential, together"),
        ([v100_row("alone", "2", ""), v100_row("together", "")], "line 3: median_ms is empty; correct the line"),
        ([v100_row("alone", "2", "") + ",,"], "line 2: the row has not the 19 cells of the header"),
    ],
)
def test_bad_rows_are_named_by_line(tmp_path: Path, rows: list[str], reason: str) -> None:
    with pytest.raises(MeasurementError, match=reason):
        read_v100(v100_table(tmp_path, *rows))


def test_a_table_without_a_column_is_refused(tmp_path: Path) -> None:
    file = tmp_path / V100_FILE
    file.write_text("device,experiment\nV100,slots\n")
    with pytest.raises(MeasurementError, match="there is no column 'mode'"):
        read_v100(file)


def test_what_a_note_tells_in_per_cent() -> None:
    note = "FMA pipe alone 43% of peak, competitor 79%"
    assert (percent_in(note, "alone"), percent_in(note, "competitor")) == (0.43, 0.79)
    assert percent_in(note, "beside") is None


def test_the_shared_tables_are_read_whole(shared: Path) -> None:
    folder = shared / "data" / "concurrency"
    v100, rtx_5090 = read_v100(folder / V100_FILE), read_rtx_5090(folder / RTX_5090_FILE)
    assert (len(v100), len(rtx_5090)) == (13, 92)
    assert all(kernel.alone_us for row in v100 for kernel in row.kernels)
    (copy_beside_fp32,) = (row for row in rtx_5090 if row.experiment == "ipc_copy_plus_fp32mul")
    assert [kernel.alone_us for kernel in copy_beside_fp32.kernels] == pytest.approx([198_472.0, 202_909.0])
    sizes = [row.size_bytes for row in v100 if row.experiment == "l2_cache"]
    assert sizes == [mib * 2**20 for mib in range(1, 7)]
