"""Attention by one call of cuDNN or by its ops; and views, which say where elements lie, against NumPy's own."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from host_backend import HostBackend, always
from host_device import HostDriver
from host_kernels import host_kernel
from host_library import HostLibrary, default_plans
from hypothesis import given, settings
from hypothesis import strategies as st
from precisions import stored_in
from small_networks import OPS, attention_op
from spelt_attentions import FEATURES, HEADS, LENGTH, attention

from iossim.backends.cupy_cudnn.convolution import Asked, FusedAttention
from iossim.backends.cupy_cudnn.cudnn_graphs import EnginePlan
from iossim.backends.cupy_cudnn.element_kernels import chain, copy, literal
from iossim.backends.cupy_cudnn.views import KernelCall, Memory, View, coalesced, dense, row_major, spread
from iossim.backends.numpy_reference.backend import evaluate_graph
from iossim.execution.backend import BackendError, Timing
from iossim.execution.engine import UNDIVIDED, Engine
from iossim.execution.made_inputs import made_arrays
from iossim.ir.network import Network
from iossim.ir.op import Array
from iossim.ir.ops.attention import Attention
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.models.onnx.export import export_graph


def ran(
    network: Network, engine: Engine = Engine.GRAPH, plans_of: object = default_plans, **options: object
) -> tuple[HostLibrary, str]:
    """Run it, and hold its outputs to NumPy's; the library, and the algorithm of its unit."""
    backend = HostBackend(network.precision, engine, HostDriver(seed=3), plans_of, **options)
    backend.agree(network)
    return backend.library, backend.algorithm(network)


def slow_in_one_call(asked: Asked) -> Mapping[EnginePlan, float]:
    """The usual plans, of which one call of an attention is slower than its products."""
    return {plan: us + 500.0 * isinstance(asked, FusedAttention) for plan, us in default_plans(asked).items()}


PLANS = {"fused": default_plans, "apart": slow_in_one_call}


def fused_of(library: HostLibrary) -> FusedAttention | None:
    return next((asked for asked in library.asked if isinstance(asked, FusedAttention)), None)


@settings(max_examples=25)
@given(
    precision=st.sampled_from([Precision.FP16, Precision.BF16]),
    engine=st.sampled_from(UNDIVIDED),
    scaled=st.sampled_from(["", "scores", "operands", "values"]),
    mask=st.sampled_from([None, (1, 1, 1, LENGTH), (2, HEADS, LENGTH, LENGTH), (1, LENGTH, LENGTH), (LENGTH,)]),
    scaled_mask=st.booleans(),
    casts=st.booleans(),
    joined=st.booleans(),
    before=st.booleans(),
    shared=st.sampled_from([1, HEADS]),
    by=st.sampled_from(list(PLANS)),
)
def test_an_attention_however_it_is_spelt(
    precision: Precision,
    engine: Engine,
    scaled: str,
    mask: tuple[int, ...] | None,
    scaled_mask: bool,
    casts: bool,
    joined: bool,
    before: bool,
    shared: int,
    by: str,
) -> None:
    network = attention(
        precision, scaled=scaled, mask=mask, scaled_mask=scaled_mask, casts=casts, joined=joined, before=before,
        shared=shared,
    )  # fmt: skip
    library, algorithm = ran(network, engine, PLANS[by])
    asked = fused_of(library)
    if (mask and scaled_mask) or scaled == "values":  # cuDNN adds a mask to what is scaled, and scales no values
        assert asked is None
        return
    factor = {"": 1.0, "scores": 1 / 2.5, "operands": 0.5 / 1.5}[scaled] * (0.3 if scaled_mask else 1.0)
    assert asked is not None
    assert asked.scale == pytest.approx(factor, rel=1e-2)
    assert (asked.mask is not None) == (mask is not None)
    assert asked.q.shape == (2, HEADS, LENGTH, FEATURES)
    for operand, heads in (asked.q, HEADS), (asked.k, HEADS // shared), (asked.v, HEADS // shared):
        assert operand.shape[1] == heads
        width = heads * FEATURES
        steps = (LENGTH * width, FEATURES, width, 1)
        assert all(
            size == 1 or own == step for size, own, step in zip(operand.shape, operand.strides, steps, strict=True)
        )
    assert algorithm.startswith(f"{by}:")
    assert len(algorithm.split("+")) == (2 if by == "apart" else 1)


@pytest.mark.parametrize("mask", [None, (2, 1, LENGTH, LENGTH), (LENGTH,)])
@pytest.mark.parametrize(("capped", "grouped"), [(True, False), (False, True)])
def test_capped_scores_and_heads_of_all_sequences_in_one_axis_run_apart(
    capped: bool, grouped: bool, mask: tuple[int, ...] | None
) -> None:
    library, _ = ran(attention(Precision.FP16, mask=mask, capped=capped, grouped=grouped))
    assert fused_of(library) is None


@pytest.mark.parametrize("by", PLANS)
@pytest.mark.parametrize("casts", [False, True])
def test_a_query_that_sees_no_key_gets_zeros(casts: bool, by: str) -> None:
    network = attention(scaled="scores", checked=True, casts=casts)
    (made,) = evaluate_graph(network.graph, made_arrays(network.graph.inputs, network.graph.types)).values()
    assert not made[:, 0].any()
    assert made[:, 1:].all()
    library, algorithm = ran(network, plans_of=PLANS[by])
    asked = fused_of(library)
    assert asked is not None
    assert asked.mask is not None
    assert algorithm.startswith(f"{by}:")


@pytest.mark.parametrize(
    ("given", "products"),
    [
        ({"features": 4}, 2),  # rows that are not aligned
        ({"features": 12}, 2),
        ({"precision": Precision.FP32}, 0),
        ({"precision": Precision.TF32}, 0),
        ({"scaled": "values"}, 2),
        ({"mask": (LENGTH,), "scaled_mask": True}, 2),  # cuDNN adds a mask to what is scaled
    ],
    ids=str,
)
def test_what_cudnn_does_not_compute_in_one_call_is_computed_apart(given: dict[str, Any], products: int) -> None:
    library, algorithm = ran(attention(**given))
    assert fused_of(library) is None
    assert len(algorithm.split()) == products


def test_where_cudnn_has_no_such_call_it_is_computed_apart() -> None:
    def none_of_attention(asked: Asked) -> Mapping[EnginePlan, float]:
        return {} if isinstance(asked, FusedAttention) else default_plans(asked)

    library, algorithm = ran(attention(), plans_of=none_of_attention)
    assert fused_of(library) is not None
    assert algorithm.startswith("apart:")


@pytest.mark.parametrize("by", PLANS)
def test_the_choice_is_kept_and_found_again(by: str, tmp_path: Path) -> None:
    kept = tmp_path / "choices.json"
    first, again = (ran(attention(), plans_of=PLANS[by], choices=kept)[1] for _ in range(2))
    assert first == again
    assert first.startswith(f"{by}:")
    of = [choice["of"] for place in json.loads(kept.read_text())["places"] for choice in place["choices"].values()]
    assert "an attention of 2x2x6x8 to 2x2x6x8 in bf16" in of


def test_each_way_computes_the_same_and_what_is_no_way_is_chosen_anew() -> None:
    backend, network = HostBackend(Precision.BF16), attention()
    ways = backend.algorithms(network, "attention")
    assert {way.name.partition(":")[0] for way in ways} == {"fused", "apart"}
    best = backend.algorithm(network)
    for text in (*(way.name for way in ways), "apart:fused:eng0", "apart:", "fused:eng77", best):
        plan = backend.lowered(network, choices=always(text))
        assert [launch.algorithm for launch in plan.launches] == [text]
        backend.agree(network, plan)


@pytest.mark.parametrize("units", ["", "fused"])
def test_a_layer_of_bert_is_timed_with_its_attention_in_one_call(units: str) -> None:
    network = load("bert_layer", dtype="bf16", shapes={"tokens": (1, 16, 64)}, **({"units": units} if units else {}))
    backend = HostBackend(Precision.BF16)
    plan = backend.lowered(network, choices=backend.choices(network))
    (samples,) = backend.measure(network, [plan], Timing(rounds=2, warm_up=0))
    assert len(samples.times_us) == 2
    assert (fused_of(backend.library) is not None) == (units == "fused")


@pytest.mark.parametrize("name", [name for name in OPS if name.startswith("attention op")])
def test_the_op_from_onnx_is_one_call_or_its_products(name: str, tmp_path: Path) -> None:
    file = tmp_path / "attention.onnx"
    onnx.save(export_graph(OPS[name]().graph), file)
    network = load(file, dtype="bf16", units="fused")
    library, algorithm = ran(network)
    asked = fused_of(library)
    if any(reason in name for reason in ("soft cap", "not aligned")):
        assert asked is None
        assert algorithm.count("apart") + algorithm.count("fused") == 2
        return
    assert asked is not None
    assert asked.is_causal == ("causal" in name)
    assert (asked.mask is not None) == any(reason in name for reason in ("past", "mask"))
    assert asked.q.shape[1] == asked.k.shape[1] * (
        1 + 2 * ("one query" in name or name.endswith("keys")) + ("past" in name)
    )


def test_masks_of_truth_values_that_no_kernel_takes_are_refused() -> None:
    sees_nothing = np.array([[True, False], [False, False]])
    network = stored_in(attention_op(Attention(1, 1), *[(1, 2, 8)] * 3, mask=sees_nothing), Precision.BF16)
    with pytest.raises(BackendError, match="mask 'mask' has a row that sees nothing; let each row see something"):
        ran(network)


SOURCE, TARGET = Memory("storage", "source"), Memory("storage", "target")


@st.composite
def views(draw: st.DrawFn) -> tuple[View, Array, Array]:
    """A view, the array that holds it, and NumPy's view of the same elements."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1
    view, same = dense(SOURCE, shape), array
    for axis, size in enumerate(shape):
        begin = draw(st.integers(0, size - 1))
        count = draw(st.integers(1, size - begin))
        step = draw(st.sampled_from([1, 1, 2, -1]))
        taken = range(begin, begin + count, step) if step > 0 else range(begin, begin - min(count, begin + 1), step)
        view = view.part(axis, begin, len(taken), step)
        same = np.take(same, list(taken), axis)
    axes = draw(st.permutations(range(len(shape))))
    return view.permuted(axes), array, same.transpose(axes)


def run(call: KernelCall, memory: dict[Memory, Array]) -> None:
    arguments = call.bound(lambda view: memory[view.memory].ctypes.data + 4 * view.offset)
    host_kernel(call.source, call.name)(call.blocks, call.threads, arguments)


@given(views())
def test_copies_move_what_numpy_sees_and_write_only_into_their_target(drawn: tuple[View, Array, Array]) -> None:
    view, array, same = drawn
    target, source = (np.full(same.shape, number, np.float32) for number in (np.nan, -1))
    run(copy(view, dense(TARGET, same.shape)), {SOURCE: array, TARGET: target})
    np.testing.assert_array_equal(target, same)
    before = array.copy()
    run(copy(dense(TARGET, same.shape), view), {SOURCE: array, TARGET: source})
    assert np.count_nonzero(array != before) == (array == -1).sum() == same.size


@given(views(), st.data())
def test_a_reshaped_view_has_its_elements_in_order(drawn: tuple[View, Array, Array], data: st.DataObject) -> None:
    view, array, same = drawn
    shape = data.draw(
        st.sampled_from([(same.size,), (1, *same.shape), (*same.shape, 1), (same.shape[0], -1), same.shape])
    )
    wanted = same.reshape(shape)
    reshaped = view.reshaped(wanted.shape)
    if reshaped is None:
        assert not view.is_dense
        return
    target = np.full(wanted.shape, np.nan, np.float32)
    run(copy(reshaped, dense(TARGET, wanted.shape)), {SOURCE: array, TARGET: target})
    np.testing.assert_array_equal(target, wanted)


def test_axes_that_are_walked_alike_are_one() -> None:
    shape = (2, 3, 4, 5)
    assert coalesced(shape, [row_major(shape)] * 2) == ([120], [[1], [1]])
    inside = (9 * 20, 20, 5, 1)  # channels of a wider storage
    assert coalesced(shape, [row_major(shape), inside]) == ([2, 60], [[60, 1], [180, 1]])
    assert coalesced((1, 1), [(7, 3)]) == ([1], [[0]])
    assert coalesced((2, 3), [(3, 1), (0, 1)]) == ([2, 3], [[3, 1], [0, 1]])


def test_blocks_are_smaller_where_there_would_be_few() -> None:
    assert [spread(threads) for threads in (1_000, 20_000, 32_767, 32_768)] == [
        (16, 64),
        (157, 128),
        (256, 128),
        (128, 256),
    ]


def test_the_kernel_of_a_chain_depends_on_its_text_its_axes_and_its_accesses_alone() -> None:
    wide, narrow = dense(SOURCE, (4, 8, 3, 3)), dense(SOURCE, (1, 2, 8, 9))
    assert chain("a0 + a1", [wide, wide], wide).source == chain("a0 + a1", [narrow, narrow], narrow).source
    assert chain("a0 + a1", [wide, wide], wide).source != chain("a0", [wide], wide).source


def test_numbers_are_spelled_as_fp32_constants() -> None:
    assert [literal(value) for value in (6.0, 0.1, -2.5e-8)] == ["(6.0e+00f)", "(1.0e-01f)", "(-2.5e-08f)"]
    target = np.zeros(1, np.float32)
    run(chain(f"a0 * {literal(1 / 3)}", [dense(SOURCE, (1,))], dense(TARGET, (1,))), {
        SOURCE: np.ones(1, np.float32), TARGET: target,
    })  # fmt: skip
    assert target[0] == np.float32(1 / 3)
    for infinity in (np.inf, -np.inf):
        run(chain(f"a0 + {literal(infinity)}", [dense(SOURCE, (1,))], dense(TARGET, (1,))), {
            SOURCE: np.ones(1, np.float32), TARGET: target,
        })  # fmt: skip
        assert target[0] == infinity


def test_cudnn_takes_images_and_slices_of_their_channels_in_either_layout() -> None:
    first, last = dense(SOURCE, (2, 8, 3, 3)), dense(SOURCE, (2, 8, 3, 3), last=True)
    assert (first.suits_cudnn(), first.suits_cudnn(last=True)) == (True, False)
    assert (last.suits_cudnn(), last.suits_cudnn(last=True)) == (False, True)
    for view, is_last in ((first.part(1, 4, 4), False), (last.part(1, 4, 4), True)):
        assert view.suits_cudnn(is_last)
        assert view.image_strides(is_last) == view.strides
    for wrong in (last.part(1, 2, 4), last.part(3, 0, 2), last.part(1, 0, 4, 2)):  # unaligned, columns, every other
        assert not wrong.suits_cudnn(last=True)
    pixels = dense(SOURCE, (5, 8, 1, 1))
    assert pixels.suits_cudnn()
    assert pixels.suits_cudnn(last=True)
    assert pixels.image_strides(last=True) == (8, 1, 8, 8)


def test_what_lies_channels_last_is_walked_so() -> None:
    images = dense(SOURCE, (2, 8, 3, 3), last=True)
    sizes = [item.item() for item in copy(images, images).arguments if not isinstance(item, View)]
    assert sizes == [36, 4, 4, 144]  # accesses of 16 bytes, one step of each operand, and elements
