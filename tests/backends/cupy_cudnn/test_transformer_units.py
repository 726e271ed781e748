"""Units of the zoo's transformers on the host's device: each computes what NumPy does, alone, in small sizes."""

from __future__ import annotations

import pytest
from host_device import HostDriver
from host_library import HostLibrary

from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
from iossim.backends.cupy_cudnn.convolution import FusedAttention
from iossim.backends.cupy_cudnn.options import CudnnOptions
from iossim.backends.numpy_reference.execute import execute
from iossim.execution.engine import Engine
from iossim.execution.lower import lower_stage
from iossim.execution.made_inputs import made_arrays
from iossim.execution.memory import plan_memory
from iossim.execution.tolerance import largest_difference, tolerance
from iossim.ir.network import Network
from iossim.ir.types import Precision
from iossim.models.load import load
from iossim.schedule.batch import Strategy

#: More takes long in NumPy's 16 bits. Left out are wide products, which are like the others.
MOST_MULTIPLY_ADDS = 6_000_000


def unlike_units(network: Network) -> list[int]:
    """A unit of each signature that is small enough, and all that are no products."""
    seen: set[object] = set()
    found = []
    for index, unit in enumerate(network.units):
        nodes = network.unit_nodes(unit)
        work = [
            node.op.multiply_adds(network.graph.input_types(node), network.graph.output_types(node)) for node in nodes
        ]
        if sum(work) <= MOST_MULTIPLY_ADDS and network.signatures[index] not in seen:
            seen.add(network.signatures[index])
            found.append(index)
    return found


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("gpt2", {"dimensions": {"tokens": 1, "past": 9}}),
        ("gpt2", {"dimensions": {"tokens": 5, "past": 0}}),
        ("gpt2", {"dimensions": {"tokens": 5, "past": 4}}),
        ("llama_1b", {"dimensions": {"tokens": 1, "past": 9}}),
        ("llama_1b", {"dimensions": {"tokens": 5, "past": 4}}),
        ("whisper_encoder", {"shapes": {"frames": (1, 5, 768)}}),
        ("whisper_decoder", {"dimensions": {"tokens": 1, "past": 9, "frames": 11}}),
        ("clip", {"dimensions": {"patches": 3, "tokens": 4}}),
        ("moe_shared", {"shapes": {"tokens": (1, 8, 64)}}),
    ],
)
@pytest.mark.parametrize("precision", [Precision.BF16, pytest.param(Precision.FP16, marks=pytest.mark.slow)])
def test_units_of_transformers(model: str, options: dict[str, object], precision: Precision) -> None:
    network = load(model, dtype=str(precision), **options)
    driver = HostDriver(seed=1)
    library = HostLibrary(driver)
    backend = CupyCudnnBackend(precision, Engine.GRAPH, CudnnOptions(), driver, library)
    tried = unlike_units(network)
    assert {"Attention", "Gather-Mul"} & {network.units[index].kind for index in tried}
    for index in tried:
        plan = plan_memory(lower_stage(network, [[index]], Strategy.CONCURRENT, Engine.GRAPH, in_place=True))
        inputs = made_arrays(plan.inputs, network.graph.types)
        expected = execute(plan, network, inputs)
        found = largest_difference(backend.execute(network, plan, inputs), expected)
        assert found.relative <= tolerance(network), (network.units[index].name, found)
    assert any(isinstance(asked, FusedAttention) for asked in library.asked) == (model != "moe_shared")
