"""Which files are read, whose device each is of, and tables of several devices, as public repositories hold them."""

from pathlib import Path

import pytest
from made_sets import made_set

from evidence.data.data_sets import default_places, read_data_sets, read_measurement_sets, read_measurements
from iossim.base.errors import OptionError
from iossim.hardware.load import device
from iossim.hardware.lowering.kernel import Libraries
from iossim.ir.types import Precision
from iossim.measurements.measurement import MeasurementError
from iossim.measurements.measurement_set import write_measurements

PRODUCTS = "device,precision,M,N,K,trans_a,trans_b,time_ms,tflops\n" + "".join(
    f'{name},"fp16 in, mixed math (tensor cores)",{64 * size},32,128,T,N,0.0{size},1.0\n'
    for name in ("V100 (DGX-1)", "T4")
    for size in range(1, 7)
)
ENGINE_COLUMNS = (
    "device,network,op,batch,in_c,in_h,in_w,out_c,kernel_h,kernel_w,stride_h,stride_w,pad_h,pad_w,groups,act_or_pool,"
    "layout,latency_ms\n"
)


def written(tmp_path: Path, text: str, name: str = "table.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_device_is_a_set_of_its_own(tmp_path: Path) -> None:
    sets = read_measurement_sets(written(tmp_path, PRODUCTS))
    assert [(one.device, len(one.measurements)) for one in sets] == [("v100-sxm2", 6), ("t4", 6)]
    first = sets[0].measurements[0]
    assert (first.operator.kind, first.operator.precision, first.latency_us) == ("gemm", Precision.FP16, 10.0)
    assert [value.shape for value in first.operator.inputs] == [(32, 128), (64, 128)]
    assert [one.header.data_set for one in sets] == ["table.v100-sxm2", "table.t4"]


def test_one_set_is_read_by_its_device(tmp_path: Path) -> None:
    path = written(tmp_path, PRODUCTS)
    assert read_measurements(path, "t4").device == "t4"
    with pytest.raises(MeasurementError, match="recorded on v100-sxm2, t4; give one of them with `device`"):
        read_measurements(path)
    with pytest.raises(MeasurementError, match="recorded on v100-sxm2, t4, not on p4"):
        read_measurements(path, "p4")


def test_data_sets_take_every_device_of_a_file(tmp_path: Path) -> None:
    found = read_data_sets([written(tmp_path, PRODUCTS)])
    assert [profile.name for _, profile in found.sets] == ["v100-sxm2", "t4"]


def test_the_engine_s_rows_are_those_of_nchw(tmp_path: Path) -> None:
    conv = "{device},net,{op},1,{channels},8,8,16,3,3,1,1,1,1,1,relu,{layout},0.05\n"
    rows = [
        conv.format(device=device, op="conv", channels=channels, layout=layout)
        for device in ("A100", "TITANX")
        for channels in range(1, 7)
        for layout in ("NCHW->NCHW", "NHWC->NCHW")
    ]
    rows.append(conv.format(device="A100", op="transform_conv", channels=4, layout="NCHW->NCHW"))
    rows.append("A100,net,pool,1,64,8,8,64,2,2,2,2,0,0,1,max,NCHW,0.01\n")
    rows.append("A100,net,elementwise,2,64,8,8,64,,,,,,,1,add,NCHW,0.01\n")
    a100, titan = read_measurement_sets(written(tmp_path, ENGINE_COLUMNS + "".join(rows)))
    assert [len(a100.measurements), len(titan.measurements)] == [8, 6]
    kinds = [(m.operator.kind, m.operator.precision) for m in a100.measurements[-3:]]
    assert kinds == [("conv", Precision.TF32), ("max_pool", Precision.FP32), ("add", Precision.FP32)]
    assert a100.measurements[-1].operator.inputs[0].shape == (128, 64)
    assert {m.operator.precision for m in titan.measurements} == {Precision.FP32}
    assert sum("left out" in note for note in a100.notes) == 2
    assert a100.header.called is Libraries.CUDNN_8


def test_layers_of_language_models_are_durations_of_kernels(tmp_path: Path) -> None:
    products = "device,model,op,tensor_parallel,M_tokens,N,K,min_ms,median_ms,mean_ms,std_ms\n" + "".join(
        f"a40,m,mlp_up_proj,1,{tokens},512,256,0.01,0.02,0.02,0\n" for tokens in range(1, 7)
    )
    (measured,) = read_measurement_sets(written(tmp_path, products))
    assert not measured.header.includes_gaps
    assert [value.shape for value in measured.measurements[2].operator.inputs] == [(3, 256), (512, 256)]
    layers = "device,model,op,tensor_parallel,tokens,width,min_ms,median_ms,mean_ms,std_ms\n" + "".join(
        f"a100,m,{op},1,{tokens},512,0.01,0.02,0.02,0\n"
        for tokens in range(1, 5)
        for op in ("add", "input_layernorm", "mlp_act")
    )
    (measured,) = read_measurement_sets(written(tmp_path, layers))
    assert measured.device == "a100-pcie-80gb"
    assert measured.kinds == ("add", "layer_norm")
    assert "4 rows left out" in measured.notes[0]


def test_convolutions_have_height_and_width_by_name(tmp_path: Path) -> None:
    columns = (
        "device,precision,batch,in_c,in_w,in_h,out_c,kernel_h,kernel_w,pad_h,pad_w,stride_v,stride_h,forward_ms,"
        "bwd_inputs_ms,bwd_params_ms,forward_algorithm\n"
    )
    rows = "".join(
        f"T4,fp16,{batch},1,700,161,32,5,20,0,1,2,3,0.5,N/A*,1,IMPLICIT_PRECOMP_GEMM\n" for batch in range(1, 7)
    )
    (measured,) = read_measurement_sets(written(tmp_path, columns + rows))
    operator = measured.measurements[0].operator
    assert operator.inputs[0].shape == (1, 1, 161, 700)
    assert operator.inputs[1].shape == (32, 1, 5, 20)
    assert (operator.op.strides, operator.op.pads) == ((2, 3), (0, 1, 0, 1))  # type: ignore[attr-defined]
    assert measured.measurements[0].algorithm == "IMPLICIT_PRECOMP_GEMM"


def test_a_row_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    broken = PRODUCTS.replace(",128,T,N,0.01,", ",128,T,N,none,", 1)
    sets = read_measurement_sets(written(tmp_path, broken))
    assert "1 of 12 rows dropped: time_ms is not a number" in sets[0].notes[0]


FOREIGN = "m,n,k,trans_a,trans_b,latency_us\n" + "".join(f"{64 * n},64,64,N,N,{20 + n}\n" for n in range(1, 9))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two sets, one of a device that does not ship, one in a subfolder, and files that are none."""
    (tmp_path / "inner").mkdir()
    write_measurements(made_set(), tmp_path / "inner" / "own.jsonl")
    (tmp_path / "gemm.my-gpu.csv").write_text(FOREIGN)
    (tmp_path / "README.md").write_text("About these.\n")
    (tmp_path / "prices.csv").write_text("fruit,price\napple,3\n")
    (tmp_path / "device.json").write_text('{"id": "facts"}\n')
    return tmp_path


def test_folder(folder: Path) -> None:
    found = read_data_sets([folder])
    assert [(measured.header.data_set, profile.name) for measured, profile in found.sets] == [("made", "v100-sxm2")]
    assert len(found.notes) == 1
    assert "my-gpu" in found.notes[0]
    assert "`device` FILE.yaml" in found.notes[0]


def test_chosen_devices(folder: Path) -> None:
    mine = device("t4").model_copy(update={"name": "my-gpu"})
    assert [profile for _, profile in read_data_sets([folder], [mine]).sets] == [mine]
    assert read_data_sets([folder], [device("t4")]).sets == ()
    assert read_data_sets([folder], [device("t4")]).notes == ()
    (folder / "README.md").write_text("op,rows,cols,latency_us\n" + "relu,64,64,3\n" * 9)  # it names no device
    assert [profile for _, profile in read_data_sets([folder / "README.md"], [mine]).sets] == [mine]


def test_a_profile_given_stands_for_the_shipped_one(folder: Path) -> None:
    changed = device("v100-sxm2").model_copy(update={"title": "tuned"})
    ((_, profile),) = read_data_sets([folder], [changed]).sets
    assert profile is changed


def test_places_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no such file or folder"):
        read_data_sets([tmp_path / "nowhere"])
    with pytest.raises(OptionError, match="no file in the folder is of measurements"):
        read_data_sets([tmp_path])


def test_default_places_may_be_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOSSIM_SHARED", str(tmp_path))
    found = read_data_sets(profiles=[device("k80")])
    assert any(str(tmp_path) in note for note in found.notes)
    (tmp_path / "data" / "kernels_mine").mkdir(parents=True)
    assert default_places()[-1] == tmp_path / "data" / "kernels_mine"
    for name in ("operators", "framework_operators"):
        (tmp_path / "data" / name).mkdir()
    assert [place.name for place in default_places()[1:]] == ["kernels_mine", "framework_operators", "operators"]


def test_measurements_that_cannot_be_right_are_refused(folder: Path) -> None:
    (folder / "inner" / "relu.t4.csv").write_text("rows,cols,latency_us\n" + "4096,4096,0.001\n" * 9)
    with pytest.raises(MeasurementError, match="is the unit us"):
        read_data_sets([folder])
