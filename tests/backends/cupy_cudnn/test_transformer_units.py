"""Units of the zoo's transformers on the host's device: each computes what NumPy does, alone, in small sizes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from host_device import HostDriver
from host_library import HostLibrary

from iossim.backends.cupy_cudnn.backend import CupyCudnnBackend
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

#: Weights of units that take long on the host: heads of a whole vocabulary, which are products like others.
MOST_WEIGHTS = 10**7


def unlike_units(network: Network) -> Iterator[int]:
    """A unit of each signature that launches work and is small enough."""
    seen: set[object] = set()
    for index, unit in enumerate(network.units):
        weights = {name for node in network.unit_nodes(unit) for name in node.inputs if name in network.graph.constants}
        small = sum(network.graph.types[name].elements for name in weights) <= MOST_WEIGHTS
        if small and network.signatures[index] not in seen:
            seen.add(network.signatures[index])
            yield index


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("gpt2", {"dimensions": {"tokens": 1, "past": 9}}),
        ("gpt2", {"dimensions": {"tokens": 5, "past": 0}}),
        ("gpt2", {"dimensions": {"tokens": 5, "past": 4}}),
        ("llama_1b", {"dimensions": {"tokens": 1, "past": 9}}),
        ("llama_1b", {"dimensions": {"tokens": 5, "past": 4}}),
        ("whisper_encoder", {}),
        ("whisper_decoder", {"dimensions": {"tokens": 1, "past": 9}}),
        ("clip", {}),
        ("moe_shared", {"shapes": {"tokens": (1, 8, 64)}}),
    ],
)
@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP16])
def test_units_of_transformers(model: str, options: dict[str, object], precision: Precision) -> None:
    network = load(model, dtype=str(precision), **options)
    driver = HostDriver(seed=1)
    library = HostLibrary(driver)
    backend = CupyCudnnBackend(precision, Engine.GRAPH, CudnnOptions(), driver, library)
    for index in unlike_units(network):
        plan = plan_memory(lower_stage(network, [[index]], Strategy.CONCURRENT, Engine.GRAPH, in_place=True))
        inputs = made_arrays(plan.inputs, network.graph.types)
        expected = execute(plan, network, inputs)
        found = largest_difference(backend.execute(network, plan, inputs), expected)
        assert found.relative <= tolerance(network), (network.units[index].name, found)
