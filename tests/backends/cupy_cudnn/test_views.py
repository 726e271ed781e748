"""Views say where elements lie: checked against NumPy's own views of an array, moved by the copy kernel."""

from __future__ import annotations

import numpy as np
from host_kernels import host_kernel
from hypothesis import given, settings
from hypothesis import strategies as st

from iossim.backends.cupy_cudnn.element_kernels import chain, copy, literal
from iossim.backends.cupy_cudnn.views import Memory, View, coalesced, dense, row_major
from iossim.ir.op import Array

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


def run(call_of: object, memory: dict[Memory, Array]) -> None:
    from iossim.backends.cupy_cudnn.views import KernelCall

    assert isinstance(call_of, KernelCall)
    arguments = call_of.bound(lambda view: memory[view.memory].ctypes.data + 4 * view.offset)
    host_kernel(call_of.source, call_of.name)(call_of.blocks, call_of.threads, arguments)


@settings(max_examples=30)
@given(views())
def test_copies_move_what_numpy_sees(drawn: tuple[View, Array, Array]) -> None:
    view, array, same = drawn
    target = np.full(same.shape, np.nan, np.float32)
    run(copy(view, dense(TARGET, same.shape)), {SOURCE: array, TARGET: target})
    np.testing.assert_array_equal(target, same)


@settings(max_examples=30)
@given(views())
def test_copies_write_only_into_their_target(drawn: tuple[View, Array, Array]) -> None:
    view, array, same = drawn
    source = np.full(same.shape, -1, np.float32)
    before = array.copy()
    run(copy(dense(TARGET, same.shape), view), {SOURCE: array, TARGET: source})
    assert np.count_nonzero(array != before) == same.size
    assert (array == -1).sum() == same.size


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
