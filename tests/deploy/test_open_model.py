"""What a file leaves open is open in what is deployed, and computes what the file does there, or is refused by name."""

from pathlib import Path

import onnx
import pytest
from cpus import cpu
from exported_networks import assert_equal_outputs, bert_encoder, decoder
from onnx import parser

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
import onnxruntime

import iossim
from iossim.deploy.deployment import Deployment, OpenDimensions, write_deployment
from iossim.deploy.runtime import open_session, provider_of, session_options
from iossim.execution.made_inputs import made_arrays
from iossim.schedule.streams import as_streams


def written(folder: Path, model: onnx.ModelProto | str) -> Path:
    """A model, or one of this input shape and these nodes."""
    if isinstance(model, str):
        model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> open (float[{model}')
    path = folder / "open.onnx"
    onnx.save(model, path)
    return path


def deployed(folder: Path, path: Path, scheduler: str = "sequential", **bound: int) -> Deployment:
    network = iossim.load(path, dimensions=bound)
    found = iossim.optimize(network, "v100-sxm2", scheduler=scheduler)
    made = folder / "deployed"
    made.mkdir()
    return write_deployment(
        made, provider_of(cpu()), network, as_streams(found, network, 2), OpenDimensions.of(network)
    )


def check_equal(read: Deployment, path: Path, **bound: int) -> None:
    """The deployed model beside its file, at other sizes."""
    graph = iossim.load(path, dimensions=bound).graph
    inputs = made_arrays(graph.inputs, graph.types)
    session = open_session(read.model, session_options(), read.provider, optimised=True)
    names = [each.name for each in session.get_outputs()]
    expected = onnxruntime.InferenceSession(str(path)).run(names, inputs)
    assert_equal_outputs(dict(zip(names, session.run(names, inputs), strict=True)), expected, names)


def test_exported_transformers_keep_open_what_they_can(tmp_path: Path) -> None:
    """Positions are picked for the length of the sequence, while what is kept of the past may be of any."""
    path = written(tmp_path, bert_encoder())
    read = deployed(tmp_path, path, batch=1, length=16)
    assert read.shapes == {"ids": ("batch", 16), "mask": ("batch", 16)}
    check_equal(read, path, batch=5, length=16)
    (tmp_path / "second").mkdir()
    path = written(tmp_path, decoder())
    read = deployed(tmp_path / "second", path, batch=1, past=4)
    assert read.shapes["token"] == ("batch", 1, 32)
    assert read.shapes["past.0.key"] == ("batch", 2, "past", 8)
    check_equal(read, path, batch=3, past=9)


def test_a_chosen_branch_keeps_its_batch_open(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """N,4] x, bool[1] first) => (float[N,4] y) {
            y = If (first) <
                then_branch = g () => (float[N,4] t) { t = Relu(x) },
                else_branch = h () => (float[N,4] t) { t = Neg(x) }
            >
        }""",
    )
    read = deployed(tmp_path, path, N=2, first=0)
    assert read.shapes == {"x": ("N", 4)}
    inputs = made_arrays(["x"], iossim.load(path, dimensions={"N": 3, "first": 0}).graph.types)
    session = open_session(read.model, session_options(), read.provider, optimised=True)
    assert (session.run(["y"], inputs)[0] == -inputs["x"]).all()


def test_merged_convolutions_keep_batch_and_image_open(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """N,1,H,W] x) => (float[N,4] y) <int64[4] size = {2,1,3,3}> {
            one = Constant <value = float[2,1,1,1] {1, 2}> ()
            three = ConstantOfShape <value = float[1] {3}> (size)
            a = Conv(x, one)
            b = Conv <pads = [1,1,1,1]> (x, three)
            cat = Concat <axis = 1> (a, b)
            pool = GlobalAveragePool(cat)
            y = Flatten(pool)
        }""",
    )
    read = deployed(tmp_path, path, "ios-merge", H=8, W=8)
    assert "Split" in {node.op_type for node in onnx.load(str(read.model), load_external_data=False).graph.node}
    assert read.shapes == {"x": ("N", 1, "H", "W")}
    check_equal(read, path, N=3, H=11, W=7)


#: Of a model, what is open of what is deployed at H = 8, and the reason where that is nothing.
FIXED = {
    # An even image is padded on one side, an odd one on both.
    """N,1,H,8] x) => (float[N,2,O,4] y) <int64[4] size = {2,1,3,3}> {
        three = ConstantOfShape <value = float[1] {3}> (size)
        y = Conv <auto_pad = "SAME_UPPER", strides = [2,2]> (x, three)
    }""": (("N", 1, 8, 8), ""),
    # One axis that was dropped before two that are open, and ones that are put back.
    """N,1,H,8] x) => (float[N,H,1,8] y) <int64[1] one = {1}, int64[1] two = {2}> {
        s = Squeeze(x, one)
        r = Relu(s)
        y = Unsqueeze(r, two)
    }""": (("N", 1, "H", 8), ""),
    """N,H] x) => (float[N,H] y) {
        shape = Shape(x)
        ones = ConstantOfShape <value = float[1] {1}> (shape)
        y = Sub(x, ones)
    }""": ((1, 8), "the constant 'ones' is another at another size"),
}


@pytest.mark.parametrize(("model", "kept", "reason"), [(model, *told) for model, told in FIXED.items()])
def test_what_depends_on_a_size_is_for_that_alone(
    tmp_path: Path, model: str, kept: tuple[int | str, ...], reason: str
) -> None:
    path = written(tmp_path, model)
    read = deployed(tmp_path, path, H=8)
    assert read.shapes == {"x": kept}
    assert read.opened.reason == reason
    assert (read.opened.shapes is None) == bool(reason)
    check_equal(read, path, N=3 if "N" in kept else 1, H=5 if "H" in kept else 8)


def test_a_network_of_no_file_is_for_its_own_batch(tmp_path: Path) -> None:
    network = iossim.load("ios_sample", batch=2)
    found = iossim.optimize(network, "v100-sxm2", scheduler="sequential")
    read = write_deployment(
        tmp_path, provider_of(cpu()), network, as_streams(found, network, 1), OpenDimensions.of(network)
    )
    assert read.shapes == {name: network.graph.types[name].shape for name in network.graph.inputs}
    assert read.opened.reason == ""
