"""Tables without a header: the reference data where it is present, and made ones that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from iossim.hardware.load import device
from iossim.measurements.formats import formats
from iossim.measurements.measurement import Extent, MeasurementError
from iossim.measurements.measurement_set import check_plausible, read_measurements

CONV = "row,batch,in_channels,out_channels,kernel,in_size,stride,padding,latency_us,grid_x,grid_y,grid_z,block_x,block_y,block_z,kernels"
CONV_ROWS = [f"{row},2,{16 + row},64,3,14,1,1,{80 + row}.125,4,9,36,64,1,1,winograd_a;sgemm_64x64" for row in range(20)]
GEMM_ROWS = [f"{16 * row},64,128,N,T,{10 + row}.0" for row in range(1, 20)]


def written(path: Path, header: str, rows: list[str], end: str = "\n") -> Path:
    path.write_text("\n".join([header, *rows]) + end)
    return path


def refusal(path: Path, device: str | None = None) -> str:
    with pytest.raises(MeasurementError) as caught:
        read_measurements(path, device)
    line = str(caught.value)
    assert path.name in line
    assert "\n" not in line
    return line


def test_recorded_through_a_framework(tmp_path: Path) -> None:
    measured = read_measurements(written(tmp_path / "conv.v100-pcie-32gb.csv", CONV, CONV_ROWS))
    assert measured.device == "v100-pcie-32gb"
    assert measured.header.includes_host_overhead
    assert measured.header.host_overhead_drifts
    assert measured.header.resolution_us == 0.001
    last = measured.measurements[-1]
    assert (last.row, last.latency_us) == (19, 99.125)
    assert last.kernels == ("winograd_a", "sgemm_64x64")
    assert (last.grid, last.block) == (Extent(4, 9, 36), Extent(64, 1, 1))
    assert last.operator.inputs[0].shape == (2, 35, 14, 14)


def test_called_directly(tmp_path: Path) -> None:
    measured = read_measurements(
        written(tmp_path / "gemm.v100-dgx1.csv", "m,n,k,trans_a,trans_b,latency_us", GEMM_ROWS)
    )
    assert measured.device == "v100-sxm2"
    assert not measured.header.includes_host_overhead
    assert measured.header.resolution_us == 1.0
    assert measured.kinds == ("gemm",)


def test_kind_and_device_need_not_be_in_the_name(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.csv", CONV, CONV_ROWS)
    assert read_measurements(path, "t4").kinds == ("conv",)
    assert "`device`" in refusal(path)
    rows = [f"{kind},{row},8,{row}.5" for row in range(1, 9) for kind in ("add", "relu")]
    assert read_measurements(written(path, "op,rows,cols,latency_us", rows), "t4").kinds == ("add", "relu")
    rows = [f"{row},8,{row}.5" for row in range(1, 9)]
    assert "add or mul or sub or another" in refusal(written(path, "rows,cols,latency_us", rows), "t4")


def test_mislabelled(tmp_path: Path) -> None:
    line = refusal(written(tmp_path / "linear.t4.csv", CONV, CONV_ROWS))
    assert "column m is missing" in line
    assert "conv" in line
    line = refusal(written(tmp_path / "conv.t4.csv", CONV.replace("latency_us", "latency_ms"), CONV_ROWS))
    assert "latency_us" in line
    assert "latency_ms" in line
    line = refusal(written(tmp_path / "conv.t4.csv", CONV.replace("in_channels", "channels"), CONV_ROWS))
    assert "in_channels" in line
    assert "twice" in refusal(written(tmp_path / "conv.t4.csv", CONV.replace("padding", "stride"), CONV_ROWS))
    assert read_measurements(written(tmp_path / "conv.t4.csv", CONV, CONV_ROWS), "p4").device == "t4"


def test_cut_short(tmp_path: Path) -> None:
    path = written(tmp_path / "conv.t4.csv", CONV, [*CONV_ROWS[:-1], CONV_ROWS[-1][:20]], end="")
    assert "cut short at line 21" in refusal(path)
    path = written(tmp_path / "gemm.t4.csv", "m,n,k,trans_a,trans_b,latency_us", GEMM_ROWS[:15], end="")
    measured = read_measurements(path)
    assert len(measured.measurements) == 14
    assert "end of line" in measured.notes[0]


def test_rows_that_make_no_sense(tmp_path: Path) -> None:
    bad = CONV_ROWS[3].replace(",3,14,", ",30,14,")
    measured = read_measurements(written(tmp_path / "conv.t4.csv", CONV, [*CONV_ROWS[:3], bad, *CONV_ROWS[4:]]))
    assert len(measured.measurements) == 19
    assert "does not fit" in measured.notes[0]
    assert "line 5" in measured.notes[0]
    short = [*CONV_ROWS[:4], "1,2,3", *CONV_ROWS[5:]]
    measured = read_measurements(written(tmp_path / "conv.t4.csv", CONV, short))
    assert "16 cells" in measured.notes[0]


def test_every_reference_table_has_one_format(shared: Path) -> None:
    paths = sorted(shared.glob("data/kernels*/*.csv"))
    assert len(paths) == 20
    for path in paths:
        head = path.read_text()[:4096]
        assert sum(known.recognises(path, head) for known in formats()) == 1


@pytest.mark.parametrize(
    ("tables", "count"),
    [("kernels_direct/*.csv", 4), ("kernels/relu.*.csv", 4), pytest.param("kernels/*.csv", 16, marks=pytest.mark.slow)],
)
def test_reference_tables(shared: Path, tables: str, count: int) -> None:
    paths = sorted(shared.glob(f"data/{tables}"))
    assert len(paths) == count
    for path in paths:
        measured = read_measurements(path)
        assert not measured.notes
        assert len(measured.measurements) == len(path.read_text().splitlines()) - 1
        assert measured.header.includes_host_overhead == (path.parent.name == "kernels")
        assert check_plausible(measured, device(measured.device)) is measured


def test_grids_of_dense_layers_follow_their_outputs(shared: Path) -> None:
    """The inner size of ``linear`` is n: one product of m rows by k columns, in tiles that the kernels' names say."""
    import re

    measured = read_measurements(shared / "data/kernels/linear.v100-pcie-32gb.csv")
    fitting = 0
    for measurement in measured.measurements:
        tile = re.search(r"_(\d+)x(\d+)", measurement.kernels[0])
        rows, columns = measurement.operator.outputs[0].shape
        if tile and measurement.grid:
            fitting += (-(-columns // int(tile[1])), -(-rows // int(tile[2]))) == measurement.grid[:2]
    assert fitting >= len(measured.measurements) - 2
