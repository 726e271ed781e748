"""``iossim.torch.compile``: the module's own outputs, in the order of its schedule; what it cannot run is eager, or refused."""

from __future__ import annotations

import copy
import pickle
import random
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")
pytest.importorskip("onnxscript", reason="needs onnxscript; pip install 'iossim[torch]'")

import torch
from tensor_device import tensor_host_backend
from torch import Tensor, nn
from torch_cuda_double import Double, TorchWithDouble

import iossim.torch
from iossim.backends.cupy_cudnn import backend as cupy_cudnn
from iossim.backends.cupy_cudnn import candidate_timing
from iossim.backends.torch_cuda import program
from iossim.backends.torch_cuda.operators import covers
from iossim.backends.torch_cuda.tensor_backend import TensorBackend
from iossim.base.errors import ModelError
from iossim.execution.backends import missing_for
from iossim.execution.happens_before import check_happens_before
from iossim.execution.plan import Launch, Wait
from iossim.ir.ops.foreign import Foreign
from iossim.ir.types import Precision, TensorType
from iossim.models.sources import torch_operators
from iossim.torch import bound as binding
from iossim.torch import compilation, compiled_module
from iossim.torch.bound import Bound

pytestmark = pytest.mark.torch


class Branches(nn.Module):
    """Two branches of one input, their sum and the first; batch norms have statistics of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.right = nn.Sequential(nn.Conv2d(3, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 8, 1))
        nn.init.uniform_(self.left[1].running_mean)

    def forward(self, image: Tensor, scaled: bool = False) -> dict[str, Tensor]:
        left, right = self.left(image), self.right(image)
        return {"sum": left + right, "left": left * 2 if scaled else left}


def branches() -> tuple[Branches, Tensor]:
    torch.manual_seed(0)
    return Branches().eval(), torch.rand(2, 3, 12, 12)


@pytest.fixture(scope="module")
def compiled() -> Any:
    module, image = branches()
    return iossim.torch.compile(module, image, "v100-sxm2", scheduler="greedy")


def assert_agree(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(found) == list(expected)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


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


def test_the_plan_is_of_streams_and_free_of_races_and_reads_the_modules_weights_unless_they_are_folded(
    compiled: Any,
) -> None:
    assert len(compiled.schedule.streams) == 2
    assert len({command.queue for command in compiled.plan.commands if isinstance(command, Launch)}) == 2
    assert any(isinstance(command, Wait) for command in compiled.plan.commands)
    check_happens_before(compiled.plan)
    state = dict(compiled.module.named_parameters())
    shared = {tensor.data_ptr() for tensor in compiled.shared_weights.values()}
    assert {value.data_ptr() for name, value in state.items() if name.startswith("right.")} == shared
    assert state["left.0.weight"].data_ptr() not in shared


def test_on_a_double_of_cuda_it_is_one_graph_of_streams(compiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured once, replayed for each call, with the events of the plan; the double runs in the order of issue."""
    double = Double()
    captured = program.TorchProgram.capture

    def capture(self: program.TorchProgram) -> None:
        captured(self)
        double.again = lambda: [step() for segment in self._segments for step in segment]  # type: ignore[assignment]

    def launch_module(graph: Any, device: str, channels_last: bool, weights: Any) -> Any:
        return made(graph, "cpu", channels_last, weights)

    made = program.launch_module
    monkeypatch.setattr(program, "torch", TorchWithDouble(double))
    monkeypatch.setattr(program, "launch_module", launch_module)
    monkeypatch.setattr(program.TorchProgram, "capture", capture)
    monkeypatch.setattr(torch.cuda, "synchronize", double.synchronize)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "double")
    module, image = branches()
    monkeypatch.setattr(cupy_cudnn, "missing", lambda: "CuPy is not installed; pip install 'iossim[gpu]'")
    with pytest.warns(UserWarning, match=r"CuPy is not installed; pip install 'iossim\[gpu\]'; units run as PyTorch's"):
        bound = Bound(module, compiled.network, compiled.schedule, {"image": image}, "cuda")
    ran = iossim.torch.CompiledModule(module, [bound], "cuda")
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
        assert ("begin capture",) not in double.calls


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


class Returning(nn.Module):
    """Computes any function of its argument."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


class Counting(nn.Module):
    def __init__(self, calls: Any) -> None:
        super().__init__()
        self.register_buffer("calls", calls)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * 2


class Listing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        return x * 2


def hooked(module: nn.Module, hook: Callable[..., Any]) -> nn.Module:
    module.register_forward_hook(hook)
    return nn.Sequential(module)


SEEN: list[Tensor] = []
X = torch.arange(8.0).view(2, 4)


@torch.library.custom_op("iossim_tests::mixed", mutates_args=())
def mixed(x: Tensor, others: list[Tensor], factor: float, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return x + sum(others) * factor, x.sum(-1) if bias is None else bias + 1


@mixed.register_fake
def _(x: Tensor, others: list[Tensor], factor: float, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[:-1])


@torch.library.custom_op("iossim_tests::doubles", mutates_args=("x",))
def doubles(x: Tensor) -> None:
    x.mul_(2)


@pytest.mark.parametrize(
    ("module", "given", "reason"),
    [
        (Returning(lambda x: x + torch.rand_like(x)), X, "Random"),
        (Returning(lambda x: x * random.random()), X, "not a function of its inputs alone"),
        (Returning(lambda x: doubles(y := x.clone()) or y), X, "operator iossim_tests.doubles.default changes its arg"),
        (Counting(torch.zeros(())), X, "module Counting changes its calls when it is called"),
        (Listing(), X, "module Listing changes its seen.0 when it is called"),
        (nn.Sequential(nn.ReLU(inplace=True), nn.Sigmoid()), X, "changes its argument 'input' in place"),
        (hooked(nn.Linear(4, 4), lambda *given: SEEN.append(given[-1])), X, "module Sequential changes its SEEN"),
        (Returning(lambda x: (x * 2, 3)), X, "output 1 of module Returning is 3, no tensor; leave it out"),
        (nn.Linear(4, 4).double(), X.double(), "'input' of module Linear is torch.float64, and its schedule computes"),
        (Returning(lambda x: (x * 2, x.view(torch.int32))), X, "Returning"),
        (nn.Linear(4, 4), (X, X), "the example inputs are no arguments of module Linear: too many"),
        ("resnet18", X, "str is not a PyTorch module"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_cannot_be_captured_is_refused_by_name_and_left_as_it_was(module: Any, given: Any, reason: str) -> None:
    chance = random.getstate(), torch.get_rng_state()
    with pytest.raises(ModelError, match=reason):
        iossim.torch.compile(module.eval() if isinstance(module, nn.Module) else module, given)
    assert not getattr(module, "calls", 0)
    assert not getattr(module, "seen", [])
    assert torch.equal(X, torch.arange(8.0).view(2, 4))
    assert random.getstate() == chance[0]
    assert torch.equal(torch.get_rng_state(), chance[1])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: ((twice := x * 2), twice[:, 1:], twice[1:].t(), twice),
        lambda x: ((twice := x * 2)[:, :3], None, twice[:, 1:]),
        lambda x: ((twice := x * 2), twice[1:].expand(3, 4), (x + 1)[:, :1].expand(2, 5)),
    ],
)
def test_outputs_that_are_parts_of_others_are_so_again(function: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    """As what a pooler returns beside the hidden states; whoever writes into one writes into the other."""
    module = Returning(function).eval()
    compiled = iossim.torch.compile(module, X)
    for _ in range(2):
        made, expected = compiled(X + 1), module(X + 1)
        torch.testing.assert_close(made, expected, rtol=0, atol=0)
        made[0].mul_(3)
        expected[0].mul_(3)
        torch.testing.assert_close(made, expected, rtol=0, atol=0)
        for one, other in zip(made, expected, strict=True):
            assert one is other is None or one.stride() == other.stride()
        assert [each is made[0] for each in made] == [each is expected[0] for each in expected]


ROUTED = torch.tensor([1, 1, 4, 6], dtype=torch.int32)
EXPERTS = torch.rand(4, 8, 16, dtype=torch.bfloat16)


def experts() -> nn.Module:
    return Returning(lambda x: nn.functional.grouped_mm(x["rows"], EXPERTS, offs=x["ends"]))


@pytest.mark.parametrize(
    ("module", "given", "kinds"),
    [
        (Returning(lambda x: x["a"] + x["b"][0]), {"x": {"a": X, "b": (X,)}}, "Add"),
        (hooked(nn.ReLU(), lambda module, given, made: made + 1), X, "Relu Add"),
        (
            Returning(lambda x: mixed(mixed(x, [x, x], 0.5)[0], [x], 2.0, bias=x[:, 0])),
            X,
            "torch.iossim_tests.mixed.default torch.iossim_tests.mixed.default",
        ),
        (Returning(lambda x: torch.linalg.eigvalsh(x @ x.t())), X, "torch.aten._linalg_eigh.default"),
        (Returning(lambda x: (x + 1).squeeze(1).squeeze((0, 1)) + x.squeeze(0)), X, "Add"),
        (nn.Conv3d(1, 2, 1, bias=False).half().requires_grad_(False), X.view(1, 1, 2, 2, 2).half(), "Conv"),
        (Returning(lambda x: x.scatter(1, x.argsort(), x * 2).scatter_add(0, x.long() % 2, x)), X, "ScatterElements"),
        (Returning(lambda x: x.index_put((torch.tensor([1, 0]),), x * 2)), X, "ScatterND"),
        (Returning(lambda x: x.scatter_reduce(1, x.argsort(), x, "amax")), X, "ScatterElements"),
        (experts(), {"x": {"rows": EXPERTS[0, :6, :8] - 1, "ends": ROUTED}}, "Matmul Where"),
        (experts(), {"x": {"rows": EXPERTS[0, :1, :8] - 1, "ends": ROUTED // 6}}, "Gather"),
    ],
)
def test_what_onnx_has_no_form_for_runs_as_it_is(module: Any, given: Any, kinds: str) -> None:
    """Trees of arguments, hooks, operators of other libraries, groups of rows, and axes that are not squeezed."""
    compiled = iossim.torch.compile(module.eval(), given)
    assert set(kinds.split()) <= {node.op.unit_kind for node in compiled.network.graph.nodes}
    call = (given["x"] if isinstance(given, dict) else given,)
    torch.testing.assert_close(compiled(*call), module(*call), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("path", ["load_library", "aten.from_file.default", "aten.add_.Tensor", "aten.none.default"])
def test_a_file_can_name_no_function_but_those_from_tensors_to_tensors(path: str) -> None:
    operator = torch_operators.named(path)
    assert operator is None or torch_operators.reason_against(operator)
    assert covers(Foreign(f"torch.{path}", 1, "", (), ()), [TensorType((2,))])


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
        generator = torch.Generator().manual_seed(seed)
        inputs = [torch.rand(8, 64, generator=generator) for _ in range(150)]
        return sum(not torch.allclose(compiled(each), module(each), atol=1e-4) for each in inputs)

    try:
        with ThreadPoolExecutor(3) as threads:
            assert [*threads.map(wrong, range(3))] == [0, 0, 0]
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


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


def test_a_module_that_is_trained_further_runs_eagerly() -> None:
    module, image = branches()
    own = iossim.torch.compile(module, image, "v100-sxm2", scheduler="greedy")
    with torch.no_grad():
        module.left[0].weight.mul_(2)
        with pytest.warns(UserWarning, match="left.0.weight of module Branches changed since it was compiled"):
            found = own(image)
        torch.testing.assert_close(found["sum"], module(image)["sum"])
        module.eval().right.train()
        with pytest.warns(UserWarning, match="right.training of module Branches changed"):
            own(image)


@pytest.fixture
def on_tensors(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The backend that a GPU has, on the device of the host: by precision."""
    for number in ("COPIES", "ROUNDS", "FINAL_ROUNDS"):
        monkeypatch.setattr(candidate_timing, number, 1)
    made: dict[Precision, TensorBackend] = {}

    def executor(network: Any, place: str) -> TensorBackend:
        return made.setdefault(network.precision, tensor_host_backend(network.precision))

    monkeypatch.setattr(binding, "executor", executor)
    monkeypatch.setattr(compilation, "executor", executor)
    return made


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(2, 5, 4, 4).transpose(1, 2) for part in self.heads(x).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.norm(x + self.out(mixed.transpose(1, 2).reshape(2, 5, 16)))


def test_on_tensors_weights_are_by_pointer_shapes_are_compiled_when_met_and_saved(
    on_tensors: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One graph of kernels and library calls a shape, in the caller's stream; a second process need not search."""
    module, image = branches()
    compiled = iossim.torch.compile(module, image, "v100-sxm2", scheduler="ios-streams")
    driver = on_tensors[Precision.FP32]._driver
    # Convolutions with folded batch norms, and those merged with them, have weights of their own.
    adopted = {tensor.data_ptr() for tensor in driver.adopted}
    last = {value.data_ptr() for value in module.right[2].parameters()}
    assert last <= adopted <= {value.data_ptr() for value in module.right.parameters()}
    other = torch.rand(1, 3, 7, 9)

    def agrees(ran: Any, *given: Tensor) -> None:
        for each in given:
            assert_agree(ran(each), module(each))

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        agrees(compiled, image, image * 3, other, other * 2, image)
        launched = [call.stream for call in driver.calls if call.verb == "launch_graph"]
        # Each shape is compared with the module once.
        assert launched.count(driver.callers_stream().ptr) == 2 + 5
        with torch.inference_mode():
            agrees(compiled, image, other)
        compiled.save(tmp_path / "branches.iossim")
        monkeypatch.setattr(
            candidate_timing.CandidateTiming, "times_us", lambda *given: pytest.fail("it is timed anew")
        )
        monkeypatch.setattr(compilation, "load_network", lambda *given: pytest.fail("it is traced anew"))
        on_tensors.clear()
        agrees(iossim.torch.load(tmp_path / "branches.iossim", module), image, other)
        module.left[0].weight.mul_(2)
    with torch.no_grad(), pytest.warns(UserWarning, match="left.0.weight of module Branches changed"):
        agrees(compiled, image)
    (tmp_path / "broken").write_bytes(b"no archive")
    for name, given, words in (
        ("branches.iossim", module, "or was saved with other weights"),
        ("branches.iossim", nn.Linear(2, 2).eval(), "was saved of a Branches, not of a Linear; load it with that"),
        ("broken", module, "broken' is no compiled module that fits this Branches"),
    ):
        with pytest.raises(ModelError, match=words):
            iossim.torch.load(tmp_path / name, given)


def test_attention_on_tensors_and_more_shapes_than_are_compiled(
    on_tensors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x = Attention().eval().requires_grad_(False), torch.rand(2, 5, 16)
    monkeypatch.setattr(compiled_module, "MOST_SHAPES", 1)
    compiled = iossim.torch.compile(module, x)
    torch.testing.assert_close(compiled(x - 1), module(x - 1), rtol=1e-4, atol=1e-5)
    assert {tensor.data_ptr() for tensor in on_tensors[Precision.FP32]._driver.adopted} <= {
        value.data_ptr() for value in module.parameters()
    }
    turned = torch.rand(5, 2, 16).transpose(0, 1)
    with pytest.warns(UserWarning, match="and 1 shapes in all; this call runs eagerly"):
        torch.testing.assert_close(compiled(turned), module(turned))


def test_what_neither_kernels_nor_numpy_compute_runs_as_pytorchs_operators(on_tensors: Any) -> None:
    module = Returning(lambda x: mixed(x, [x], 2.0)[0] + 1).eval()
    with pytest.warns(UserWarning, match="it can be priced, not run; units run as PyTorch's operators"):
        compiled = iossim.torch.compile(module, X)
    torch.testing.assert_close(compiled(X), X * 3 + 1)


def test_under_autocast_it_computes_as_autocast_has_it(on_tensors: Any) -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval().requires_grad_(False)
    image = torch.rand(1, 3, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16), warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = iossim.torch.compile(module, image)
        assert compiled(image).dtype is module(image).dtype is torch.bfloat16
        torch.testing.assert_close(compiled(image), module(image), rtol=5e-2, atol=5e-2)
    with pytest.warns(UserWarning, match="autocast is False, compiled was torch.bfloat16"):
        assert compiled(image).dtype is torch.float32


def test_stages_are_chosen_by_measuring_where_the_module_is() -> None:
    module, image = branches()
    compiled = iossim.torch.compile(module.requires_grad_(False), image, "v100-sxm2", tune=1)
    torch.testing.assert_close(compiled(image)["sum"], module(image)["sum"], rtol=1e-4, atol=1e-5)
    assert (compiled.schedule.cost_model["name"], compiled.schedule.device) == ("torch_cuda", "cpu")


@pytest.mark.gpu
def test_on_a_gpu_calls_of_two_streams_come_one_after_another_in_pytorchs_memory() -> None:
    if reason := missing_for("cupy_cudnn"):
        pytest.skip(reason)
    module, image = branches()
    module, image = module.cuda().requires_grad_(False), image.cuda()
    before = torch.cuda.memory_allocated()
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
