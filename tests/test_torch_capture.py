"""Captures of ``iossim.torch.compile``: trees, parts of outputs and operators as they are; the rest is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch; pip install 'iossim[torch]'")
pytest.importorskip("onnxscript", reason="needs onnxscript; pip install 'iossim[torch]'")

import torch
from compiled_modules import Returning, X, mixed
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import iossim.torch
from iossim.backends.torch_cuda.operators import covers
from iossim.base.errors import ModelError
from iossim.ir.ops.foreign import Foreign
from iossim.ir.types import TensorType
from iossim.models.sources import torch_operators

pytestmark = pytest.mark.torch


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
        (Returning(lambda x: x.append(x[0]) or x[0] * 2), {"x": [X]}, r"changes its argument 'x\[1\]' in place"),
        (hooked(nn.Linear(4, 4), lambda *given: SEEN.append(given[-1])), X, "module Sequential changes its SEEN"),
        (Returning(lambda x: (x * 2, 3.5)), X, "output 1 of module Returning is 3.5, no tensor; leave it out"),
        (Returning(lambda x: (x, x.sum().item())), X, "returns numbers that depend on its arguments; return tensors"),
        (nn.Linear(4, 4).double(), X.double(), r"'input' of module Linear is torch.float64\[2x4\] on cpu, and its"),
        (Returning(torch.abs), X[:0], r"is torch.float32\[0x4\] on cpu, and its schedule computes with .*\[1x4\]"),
        (Returning(lambda x: x.to_dense() * 2), X.to_sparse(), r"\[2x4\] on cpu, torch.sparse_coo, and its schedule"),
        (Returning(torch.fft.rfft), X, r"output 0 of module Returning is torch.complex64\[2x3\] on cpu, and"),
        (Returning(torch.abs), ([1.0, 2.0],), "inputs of module Returning are on no device; give some on one"),
        (Returning(torch.abs), {"x": (X, X.to("meta"))}, "inputs of module Returning are on cpu and meta; give"),
        (torch.jit.ScriptModule(), X, "ScriptModule is not a PyTorch module that can be traced"),
        (Returning(lambda x: (x * 2, x.view(torch.int32))), X, "Returning"),
        (nn.Linear(4, 4), (X, X), "the example inputs are no arguments of module Linear: too many"),
        (
            Returning(lambda x: x[:, 1:3].as_strided((2, 2), (4, 1)) * 2),
            X,
            "reads outside of its tensor; index the tensor",
        ),
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


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.as_strided((3, 2), (2, 1)) * 2,
        lambda x: x.t().as_strided((3, 2), (2, 1)) * 2,
        lambda x: x.t().as_strided((3, 2), (2, 1), 1) * 2,
        lambda x: x[1:].as_strided((2, 3), (1, 1)) * 2,
        lambda x: (x + 1).view(2, 2, 2).transpose(0, 1).as_strided((3, 4), (2, 1)) * 2,
    ],
)
def test_strides_are_those_of_the_memory(function: Callable[[Tensor], Tensor]) -> None:
    """Longformer cuts its overlapping chunks so from a transposed tensor."""
    module = Returning(function).eval()
    torch.testing.assert_close(iossim.torch.compile(module, X)(X + 1), module(X + 1), rtol=0, atol=0)


def resized(x: Tensor, **how: Any) -> Tensor:
    return nn.functional.interpolate(x.view(1, 1, 7, 8), mode="bilinear", **how)


WHOLE = torch.tensor([-(2**40) - 1, -50000017, -7, 0, 20000003, 2**33 + 12345])
TENTHS = torch.arange(-30, 31) / 10


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda x: torch.div(x, 7, rounding_mode="floor"), WHOLE),
        (lambda x: torch.div(x, -7, rounding_mode="trunc"), WHOLE),
        (lambda x: (x // -7, x % -7, 7 // (x * 2 + 1), -7 % (x * 2 + 1)), WHOLE),
        (lambda x: torch.div(x, 0.3, rounding_mode="floor"), WHOLE % 100),
        (lambda x: (x << 3, x >> 2, (x.int() % 100) << 1, x.int() >> 5), WHOLE),
        (lambda x: (x.to(torch.uint8) << 1, x.to(torch.uint8) >> 2, x.to(torch.int8) >> 1), WHOLE),
        (lambda x: (x // 0.1, x % 0.1, x // -0.3, x % -0.3), TENTHS),
        (lambda x: (1.0 // (x + 0.05), 1.0 % (x + 0.05), x // x.flip(0)), TENTHS),
        (lambda x: (torch.div(x, 0.1, rounding_mode="floor"), torch.div(x, 0.1, rounding_mode="trunc")), TENTHS),
        (lambda x: torch.atan2(x[:, None], torch.stack([x, x * -0.0])[:, None]), TENTHS),
        (lambda x: torch.atan2(x, torch.full_like(x, -1)), WHOLE.sign()),
        (lambda x: nn.functional.logsigmoid(x * 60), TENTHS),
        (lambda x: nn.functional.logsigmoid(x.half() * 8), TENTHS),
        (lambda x: torch.logaddexp(x * 60, x.flip(0) * 50), TENTHS),
        (lambda x: torch.logaddexp(x / 0, x), TENTHS.abs()),
        (lambda x: (torch.logaddexp2(x * 60, x), torch.logcumsumexp(x * 60, 0)), TENTHS),
        (lambda x: (torch.log1p(x * 1e-6), torch.log1p(x.abs()), torch.expm1(x * 1e-6), torch.expm1(x * 9)), TENTHS),
        (lambda x: torch.histc(x, 5, -1, 1), TENTHS),
        (lambda x: nn.functional.rrelu(x, 0.1), TENTHS),
        (lambda x: resized(x, scale_factor=1.7, align_corners=True), TENTHS[:56]),
        (lambda x: resized(x, scale_factor=(0.5, 1.4), antialias=True), TENTHS[:56]),
        (lambda x: resized(x, size=(5, 13), align_corners=True, antialias=True), TENTHS[:56]),
        (lambda x: nn.functional.avg_pool2d(x.view(1, 1, 7, 8) - 1, 2, divisor_override=5), TENTHS[:56]),
        (lambda x: x.scatter_reduce(0, torch.arange(6) // 3, x, "mean"), WHOLE / 1e9),
    ],
)
def test_arithmetic_is_pytorchs_for_values_that_were_not_compared(
    function: Callable[[Tensor], Any], given: Tensor
) -> None:
    """Compiling compares the results of its example alone, here ones, of which the exporter's were right, too."""
    module = Returning(function).eval()
    made, expected = iossim.torch.compile(module, torch.ones_like(given))(given), module(given)
    torch.testing.assert_close(made, expected, rtol=1e-6, atol=1e-30, equal_nan=True)


def test_arguments_that_are_one_tensor_or_the_modules_own_are_told_apart() -> None:
    module = Returning(lambda x: (x[0] + 2 * x[1], x[0], x[0][:, 1:], x[1])).eval()
    made, expected = iossim.torch.compile(module, {"x": (X, X, None)})(given := (X + 1, X * 3, None)), module(given)
    torch.testing.assert_close(made[0], expected[0])
    assert [each.data_ptr() for each in made[1:]] == [each.data_ptr() for each in expected[1:]]
    linear = nn.Linear(4, 4).eval().requires_grad_(False)
    torch.testing.assert_close(iossim.torch.compile(linear, linear.weight)(X.repeat(2, 1)), linear(X.repeat(2, 1)))


class Kept:
    """Keys of two layers, as a cache keeps them in objects of its own."""

    def __init__(self, *keys: Tensor) -> None:
        self.keys, self.place = {len(keys): [*keys]}, keys[0].device


def test_a_class_of_results_that_is_no_tree_becomes_one_of_its_tensors() -> None:
    module = Returning(lambda x: (Kept(x * 2, x), x + 1)).eval()
    compiled = iossim.torch.compile(module, X)
    (kept, more), (again, _) = compiled(x := X - 3), compiled(X)
    assert (type(kept), kept.place) == (Kept, X.device)
    assert kept.keys[2][1] is x
    torch.testing.assert_close((kept.keys[2][0], more), (x * 2, x + 1))
    torch.testing.assert_close(again.keys[2][0], X * 2)
    with pytest.warns(UserWarning, match=r"x.* is .*; this call runs eagerly"), pytest.raises(TypeError):
        compiled(kept)


attended = nn.functional.scaled_dot_product_attention
ORTHOGONAL = parametrizations.orthogonal(nn.Linear(4, 4)).requires_grad_(False)
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
        (Returning(lambda x: torch.linalg.inv(x[:, :2] - 9)), X, "torch.aten.linalg_inv.default"),
        (Returning(lambda x: nn.functional.embedding_bag(x.long() % 2, X)), X, "torch.aten.embedding_bag.padding_idx"),
        (Returning(lambda x: (x + 1).squeeze(1).squeeze((0, 1)) + x.squeeze(0)), X, "Add"),
        (nn.Conv3d(1, 2, 1, bias=False).half().requires_grad_(False), X.view(1, 1, 2, 2, 2).half(), "Conv"),
        (Returning(lambda x: x.scatter(1, x.argsort(), x * 2).scatter_add(0, x.long() % 2, x)), X, "ScatterElements"),
        (Returning(lambda x: x.index_put((torch.tensor([1, 0]),), x * 2)), X, "ScatterND"),
        (Returning(lambda x: x.index_add(0, torch.tensor([1]), x[:1])), X, "ScatterND"),
        (Returning(lambda x: (1.0 - x.long()) * x), X, "Sub"),
        (Returning(lambda x: attended(x, x * 2, x, is_causal=True)), X.tile(4, 1, 1, 2, 1), "Softmax"),
        (
            Returning(lambda x: attended(x, x[0], x)),
            X.view(1, 1, 1, 2, 4),
            "torch.aten.scaled_dot_product_attention.default",
        ),
        (Returning(lambda x: attended(x, x, x, x > 5)), X.view(1, 1, 2, 2, 2)[0] + 2, "ReduceMax"),
        (Returning(lambda x: x.scatter_reduce(1, x.argsort(), x, "amax")), X, "ScatterElements"),
        (Returning(lambda x: x.index_put((x > 5,), X[0, 0]).index_put((x[:, 0] > 0,), x[0])), X, "Where"),
        (Returning(lambda x: torch.ops.aten.index_put(x, [None, x[1] < 6], X[0, 1])), X, "Where"),
        (Returning(lambda x: (x + 1, x.shape[1], True, None)), X.to(torch.int16), "Add"),
        (ORTHOGONAL, X, "torch.aten.linalg_matrix_exp.default Gemm"),
        (Returning(lambda x: x * 2), torch.view_as_complex(X.view(2, 2, 2)).conj().imag, "Mul"),
        (experts(), {"x": {"rows": EXPERTS[0, :6, :8] - 1, "ends": ROUTED}}, "Grouped-Matmul"),
        (experts(), {"x": {"rows": EXPERTS[0, :1, :8] - 1, "ends": ROUTED // 6}}, "Grouped-Matmul"),
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
