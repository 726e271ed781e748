"""``iossim.torch.compile``: the module's own outputs, in the order of its schedule; other calls are eager."""

from __future__ import annotations

import copy
import pickle
import random
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")
pytest.importorskip("onnxscript", reason="needs onnxscript; pip install 'iossim[torch]'")

import torch
from compiled_modules import X, assert_agree, branches
from torch import Tensor, nn
from torch.utils import _pytree
from torch_cuda_double import Double, TorchWithDouble

import iossim.torch
from iossim.backends.cupy_cudnn import backend as cupy_cudnn
from iossim.backends.torch_cuda import program
from iossim.backends.torch_cuda.tensors import one_thread
from iossim.base.errors import ModelError, OptionError
from iossim.execution.backend import missing_for
from iossim.execution.memory import check_happens_before
from iossim.execution.plan import Launch, Wait
from iossim.ir.types import Precision
from iossim.torch import bound as binding
from iossim.torch import compilation
from iossim.torch.bound import Bound

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def compiled() -> Any:
    module, image = branches()
    return iossim.torch.compile(module, image, "v100-sxm2", scheduler="greedy")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"devcie": "t4"}, r"compile takes no `devcie`; did you mean 'device'\? known: "),
        ({"scheduler": "ios-bth"}, "`scheduler` 'ios-bth' is not known; did you mean 'ios-both'"),
        ({"tune": float("nan")}, "tune is nan; give seconds"),
    ],
)
def test_a_wrong_option_is_one_line_that_names_it(compiled: Any, options: Any, reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        iossim.torch.compile(compiled.module, X, **options)


def test_shapes_that_depend_on_data_have_a_remedy_that_helps() -> None:
    class Selection(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[x > 0].sum()

    with pytest.raises(ModelError, match=r"NonZero .*; use torch.compile\(module, backend=\"iossim\"\)"):
        iossim.torch.compile(Selection().eval(), X)
    with torch.no_grad():
        assert torch.compile(Selection().eval(), backend="iossim")(X) == Selection()(X)


def test_a_compiled_module_is_a_module_and_can_be_part_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the attributes of its own, runs in its parent, and is traced and transformed as the module itself."""
    body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    parent = nn.Sequential(body, nn.Tanh()).eval().requires_grad_(False)
    expected, jacobian = parent(X), torch.func.jacrev(body)(X)
    parent[0] = part = iossim.torch.compile(body, X)
    runs, run = [], Bound.run
    monkeypatch.setattr(Bound, "run", lambda bound, given: (runs.append(bound), run(bound, given))[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for called in (parent, torch.compile(parent, backend="eager")):
            torch.testing.assert_close(called(X), expected)
            assert runs.pop()
        torch.testing.assert_close(torch.compile(part, backend="eager")(X).tanh(), expected)
        assert runs.pop()
        torch.testing.assert_close(torch.func.jacrev(part)(X), jacobian)
        whole = iossim.torch.compile(parent, X)
        runs.clear()
        torch.testing.assert_close(whole(X), expected)
    assert len(runs) == 1, "the whole is one schedule"
    assert [*parent.state_dict()] == ["0.module.0.weight", "0.module.0.bias"]
    assert iossim.torch.compile(part, X).module is body is part.module
    assert part.append == body.append, "an attribute of the module"
    parent.train()
    with pytest.warns(UserWarning, match="training of module Sequential changed") as told:
        part(X)
    assert told[0].filename == __file__
    part.eval().factor = 2
    assert body.factor == 2, "attributes are set there, too"


def test_outputs_are_the_modules_and_the_callers_own(compiled: Any) -> None:
    _, image = branches()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        for scale in (1, 3):
            assert_agree(compiled(image * scale), compiled.module(image * scale))
        kept = compiled(image)["sum"]
        before = kept.clone()
        compiled(image * 5)
        torch.testing.assert_close(kept, before, rtol=0, atol=0)
    assert repr(compiled).startswith("<CompiledModule Branches: <StreamSchedule greedy of Branches on v100-sxm2")


def test_the_plan_is_of_streams_and_free_of_races_and_reads_the_modules_weights_unless_they_are_folded(
    compiled: Any,
) -> None:
    assert len(compiled.schedule.streams) == 2
    assert len({command.queue for command in compiled.plan.commands if isinstance(command, Launch)}) == 2
    assert any(isinstance(command, Wait) for command in compiled.plan.commands)
    check_happens_before(compiled.plan)
    state = dict(compiled.module.named_parameters())
    (bound,) = compiled._bounds.values()
    shared = {tensor.data_ptr() for tensor in bound.shared_weights.values()}
    assert {value.data_ptr() for name, value in state.items() if name.startswith("right.")} == shared
    assert state["left.0.weight"].data_ptr() not in shared


def test_on_a_double_of_cuda_it_is_one_graph_of_streams(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured once, replayed for each call, with the events of the plan; the double runs in the order of issue."""
    double = Double()
    captured = program.TorchProgram.capture

    allowed: list[bool] = []

    def flattened(value: Any) -> Any:
        allowed.append(torch.backends.cudnn.allow_tf32)
        return _pytree.tree_flatten(value)

    def capture(self: program.TorchProgram) -> None:
        allowed.append(torch.backends.cudnn.allow_tf32)
        captured(self)
        double.again = lambda: [step() for segment in self._segments for step in segment]  # type: ignore[assignment]

    def launch_module(graph: Any, device: str, channels_last: bool, weights: Any) -> Any:
        return made(graph, "cpu", channels_last, weights)

    made = program.launch_module
    monkeypatch.setattr(program, "torch", TorchWithDouble(double))
    monkeypatch.setattr(program, "launch_module", launch_module)
    monkeypatch.setattr(program.TorchProgram, "capture", capture)
    monkeypatch.setattr(binding, "pytree", SimpleNamespace(**{**vars(_pytree), "tree_flatten": flattened}))
    monkeypatch.setattr(torch.cuda, "synchronize", double.synchronize)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "double")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    module, image = branches()
    monkeypatch.setattr(cupy_cudnn, "missing", lambda: "CuPy is not installed; pip install 'iossim[gpu]'")
    with pytest.warns(UserWarning, match=r"CuPy is not installed; pip install 'iossim\[gpu\]'; units run as PyTorch's"):
        bound = Bound(module, compiled.network, compiled.schedule, {"image": image}, "cuda")
    assert (allowed, torch.backends.cudnn.allow_tf32) == ([False, False], True), "both compute as the network says"
    with pytest.warns(UserWarning, match="PyTorch convolves Branches in TF32, its schedule in fp32; torch.set_float32"):
        assert compilation._in_tf32(compiled.network, "cuda").precision is Precision.FP32
    ran = iossim.torch.CompiledModule(module, [bound])
    begin, end = double.calls.index(("begin capture",)), double.calls.index(("end capture",))
    inside = [call[0] for call in double.calls[begin:end]]
    assert inside.count("wait") == sum(isinstance(command, Wait) for command in ran.plan.commands) > 0
    assert ("join", "s0", "capture") in double.calls
    assert ("join", "s1", "capture") in double.calls
    for scale in (1, 3):
        double.calls.clear()
        with torch.no_grad():
            assert_agree(ran(image * scale), module(image * scale))
        assert double.calls[0] == ("replay",)
        assert not {("begin capture",), ("synchronise",)} & {*double.calls}, "the host does not wait"
    assert binding._shared_weights(module, ran.network, torch.device("cuda", 1)) == {}, "kernels read their own GPU's"
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    with pytest.warns(UserWarning, match="CuPy runs on the first visible GPU"):
        binding.executor(ran.network, "cuda")


def test_what_it_was_not_compiled_for_runs_eagerly_with_one_warning() -> None:
    module, image = branches()
    compiled = iossim.torch.compile(module, {"image": image}, "v100-sxm2", scheduler="sequential", dynamic=False)
    other = torch.rand(1, 3, 8, 8)
    with torch.no_grad():
        with pytest.warns(UserWarning, match=r"image is torch.float32\[1x3x8x8\] on cpu, compiled was"):
            found = compiled(other)
        torch.testing.assert_close(found, module(other), rtol=0, atol=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            scaled = compiled(image, scaled=True)
        torch.testing.assert_close(scaled, module(image, scaled=True), rtol=0, atol=0)
    assert compiled(image.clone().requires_grad_())["sum"].requires_grad


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, scale: float = 2, *, flag: bool = True) -> dict[str, Tensor]:
        made = self.linear(x) * scale
        kinds = {"given": x, "part": x[:, 1:], "again": made, "weight": self.linear.weight}
        return {"made": made, **kinds, "turned": (made + 1).t(), "cut": made.relu().chunk(2, 1)[1]}


@pytest.fixture(scope="module")
def scaled() -> Any:
    return iossim.torch.compile(Scaled().eval(), torch.rand(4, 4)[2:], dynamic=False)


def warned(compiled: Any, *arguments: Any, **keywords: Any) -> str:
    """What a call warns of; its outputs are the module's own."""
    compiled._warned.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = compiled(*arguments, **keywords)
    expected = compiled.module(*arguments, **keywords)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert [each.stride() for each in found.values()] == [each.stride() for each in expected.values()]
    return "".join(str(each.message) for each in caught)


def test_arguments_are_those_of_the_example_in_type_value_and_layout(scaled: Any) -> None:
    with torch.no_grad():
        for same in ((X * 3,), (X, 2), (torch.rand(4, 4)[1:3],)):
            assert warned(scaled, *same) == ""
        assert warned(scaled, x=X, scale=2, flag=True) == ""
        assert "scale is 2.0, compiled was 2;" in warned(scaled, X, 2.0)
        assert "flag is 1, compiled was True;" in warned(scaled, X, flag=1)
        turned = torch.rand(4, 2).t()
        assert r"x is torch.float32[2x4] on cpu, strides (1, 2), compiled was" in warned(scaled, turned)
        assert "x is torch.float32[1x4]" in warned(scaled, X[:1])


def test_outputs_share_the_memory_that_the_modules_do(scaled: Any) -> None:
    given = torch.rand(4, 4)[2:]
    with torch.no_grad():
        found = scaled(given)
    assert found["given"] is given
    assert found["part"].data_ptr() == given[:, 1:].data_ptr()
    assert found["again"] is found["made"]
    assert found["weight"].data_ptr() == scaled.module.linear.weight.data_ptr()


def test_other_settings_of_torch_and_gradients_are_eager(scaled: Any) -> None:
    with torch.no_grad():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert "autocast is torch.bfloat16, compiled was False" in warned(scaled, X)
        torch.set_default_dtype(torch.float64)
        try:
            assert "the default dtype is torch.float64" in warned(scaled, X)
        finally:
            torch.set_default_dtype(torch.float32)
        with torch.inference_mode():
            assert warned(scaled, X) == ""
    assert "parameters ask for gradients; call it under torch.no_grad()" in warned(scaled, X)
    assert scaled(X)["made"].requires_grad


def test_calls_of_several_threads_keep_apart() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval().requires_grad_(False)
    compiled = iossim.torch.compile(module, torch.rand(8, 64))
    torch.set_float32_matmul_precision("high")

    def wrong(seed: int) -> int:
        inputs = torch.rand(150, 8, 64, generator=torch.Generator().manual_seed(seed))
        return sum(not torch.allclose(compiled(each), module(each), atol=1e-4) for each in inputs)

    try:
        with ThreadPoolExecutor(3) as threads:
            assert [*threads.map(wrong, range(3))] == [0, 0, 0]
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_shape_is_compiled_while_other_threads_wait() -> None:
    """Tracing puts other tensors into the module: a call then would see these, or take them for a change."""
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).eval().requires_grad_(False)
    inputs = [torch.rand(count, 64) for count in (2, 3, 2, 3)]
    with ThreadPoolExecutor(3) as threads:
        compiled, _ = threads.map(lambda x: iossim.torch.compile(module, x), inputs[:2])
        torch.testing.assert_close([*threads.map(compiled, inputs)], [*map(module, inputs)], rtol=1e-4, atol=1e-5)
    assert (len(compiled._bounds), compiled._warned) == (2, set())
    held: list[bool] = []
    module.register_forward_hook(lambda *_: held.append(one_thread._is_owned()))
    with pytest.warns(UserWarning, match="_forward_hooks of module Sequential changed"):
        compiled(inputs[0])
    assert held == [True], "eager calls wait, too"


@pytest.mark.parametrize("made", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_compiled_module_is_neither_copied_nor_pickled(made: Callable[[Any], Any], scaled: Any) -> None:
    with pytest.raises(ModelError, match="compiled module Scaled holds memory of its own"):
        made(scaled)


def test_backend_of_torch_compile() -> None:
    module, image = branches()
    ran = torch.compile(module, backend=iossim.torch.dynamo_backend, fullgraph=True, dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(ran(image), module(image), rtol=1e-4, atol=1e-5)
        module.left[0].weight.data.mul_(2)
        with pytest.warns(UserWarning, match="a weight of module GraphModule changed"):
            torch.testing.assert_close(ran(image), module(image))
        module.left[0].weight = nn.Parameter(torch.rand(8, 3, 3, 3))
        module.left[1].running_mean = torch.ones(8)
        with pytest.warns(UserWarning, match="weights were replaced since this graph was compiled"):
            torch.testing.assert_close(ran(image), module(image))
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="gradients are asked of this graph"):
        assert ran(image)["sum"].requires_grad


def test_a_graph_that_is_refused_runs_eagerly() -> None:
    ran = torch.compile(lambda x: x.add_(1), backend="iossim", options={"scheduler": "greedy"}, dynamic=False)
    with pytest.warns(UserWarning, match="changes its argument 'l_x_' in place, .*; it runs eagerly"):
        torch.testing.assert_close(ran(x := X.clone()), X + 1)
    torch.testing.assert_close(x, X + 1)
    with pytest.raises(Exception, match="`scheduler` 'greed' is not known"):
        torch.compile(lambda x: x * 3, backend="iossim", options={"scheduler": "greed"})(X)


def test_a_module_that_is_trained_further_runs_eagerly() -> None:
    module, image = branches()
    own = iossim.torch.compile(module, image, "v100-sxm2", scheduler="greedy")
    with torch.no_grad():
        module.left[0].weight.mul_(2)
        with pytest.warns(UserWarning, match="left.0.weight of module Branches changed since it was compiled"):
            found = own(image)
        torch.testing.assert_close(found["sum"], module(image)["sum"])


def test_stages_are_chosen_by_measuring_where_the_module_is() -> None:
    module, image = branches()
    compiled = iossim.torch.compile(module.requires_grad_(False), image, "v100-sxm2", tune=1)
    torch.testing.assert_close(compiled(image)["sum"], module(image)["sum"], rtol=1e-4, atol=1e-5)
    assert (compiled.schedule.cost_model["name"], compiled.schedule.device) == ("torch_cuda", "cpu")


@pytest.mark.gpu
def test_on_a_gpu_calls_of_two_streams_come_one_after_another_in_pytorchs_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if reason := missing_for("cupy_cudnn"):
        pytest.skip(reason)
    module, image = branches()
    module, image = module.cuda().requires_grad_(False), image.cuda()
    before = torch.cuda.memory_allocated()
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = iossim.torch.compile(module, image, "v100-sxm2", scheduler="ios-streams")
    assert torch.cuda.memory_allocated() - before >= compiled.plan.arena_bytes
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        first = compiled(image * 3)["sum"]
    results = {3: first, 1: compiled(image)["sum"]}
    torch.cuda.synchronize()
    for factor, found in results.items():
        torch.testing.assert_close(found, module(image * factor)["sum"], rtol=1e-3, atol=1e-4)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), pytest.warns(UserWarning, match="the caller captures a CUDA graph"):
        compiled(image)


class Best(nn.Module):
    """Positive parts, and where the largest are: of equal ones ONNX takes the first, PyTorch any."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        self.noise = noise

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(x) + self.noise * random.random()
        return y, torch.topk(y, 10).indices


def test_equal_numbers_in_another_order_are_a_warning_where_an_output_depends_on_their_order() -> None:
    x = -torch.ones(1, 336)
    with pytest.warns(UserWarning, match=r"outputs \[1\] of module Best differ from its own; they depend on an order"):
        compiled = iossim.torch.compile(Best(0.0).eval(), x)
    assert compiled(x)[1].tolist() == [[*range(10)]]
    with pytest.raises(ModelError, match=r"output 0 of module Best is off by .* is not a function of its inputs"):
        iossim.torch.compile(Best(1.0).eval(), x)
