"""cuDNN through its graph front end: which execution plans there are for a convolution, and how one is executed.

Plans are enumerated by cuDNN's heuristics, filtered by numerical notes, and named by cuDNN's own tags (engine and knobs).
Pointers are raw addresses: the front end's other way in, DLPack, synchronises with the legacy stream. Without a GPU the
same plans are enumerated from a description of one (``properties``), though nothing can be executed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from types import ModuleType
from typing import Any

from iossim.backends.cupy_cudnn.convolution import Convolution, TensorLayout
from iossim.backends.cupy_cudnn.driver import EnginePlan
from iossim.errors import first_line
from iossim.execution.backend import BackendError

#: What each operand is called in the variant pack.
UIDS = {"x": 1, "w": 2, "b": 3, "y": 4}


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a plan may do: multiply in TF32 on tensor cores, give other bits from run to run."""

    tf32: bool = False
    nondeterministic: bool = False


@dataclass(frozen=True)
class _Planned:
    """A graph of the front end (None where cuDNN refuses it), and its plans by name with their index."""

    graph: Any
    plans: dict[str, tuple[int, EnginePlan]]


@dataclass(frozen=True)
class _Executable:
    """One plan of a graph."""

    planned: _Planned
    index: int


class CudnnGraphs:
    """Convolutions of one device.

    ``properties`` is the JSON text of a device that is not there; without it, plans are for the current one.
    """

    def __init__(self, allowed: Allowed, properties: str | None = None) -> None:
        import cudnn

        self._cudnn: ModuleType = cudnn
        self._allowed = allowed
        self.refusals: tuple[type[Exception], ...] = (cudnn.cudnnGraphNotSupportedError, RuntimeError)
        self._device: dict[str, Any] = (
            {"handle": cudnn.create_handle()}
            if properties is None
            else {"device_property": cudnn.create_device_properties(properties)}
        )
        self._planned = cache(self._with_plans)

    @property
    def versions(self) -> tuple[tuple[str, str], ...]:
        return (("cudnn", _version(self._cudnn.backend_version())), ("cudnn-frontend", self._cudnn.__version__))

    def handle(self, stream: Any) -> Any:
        handle = self._cudnn.create_handle()
        self._cudnn.set_stream(handle, stream.ptr)
        return handle

    def plans(self, convolution: Convolution) -> tuple[EnginePlan, ...]:
        return tuple(plan for _, plan in self._planned(convolution).plans.values())

    def bind(self, convolution: Convolution, plan: str) -> _Executable:
        planned = self._planned(convolution)
        return _Executable(planned, planned.plans[plan][0])

    def execute(self, executable: _Executable, addresses: Mapping[str, int], workspace: int, handle: Any) -> None:
        pack = {UIDS[name]: address for name, address in addresses.items()}
        executable.planned.graph.execute_plan_at_index(pack, workspace, executable.index, handle)

    def _with_plans(self, convolution: Convolution) -> _Planned:
        """All plans of a convolution that the options allow, built, each name once.

        They are executed through a graph that no notes were filtered from: the front end checks filters at each execution,
        which takes longer than all else that the host does for it.
        """
        filtered = self._enumerated(convolution, self._unwanted)
        plans: dict[str, tuple[int, EnginePlan]] = {}
        if filtered is not None:
            for index in range(filtered.get_execution_plan_count()):
                if self._built(filtered, index):
                    name = filtered.get_plan_name_at_index(index)
                    workspace_bytes = int(filtered.get_workspace_size_plan_at_index(index))
                    plans.setdefault(name, (index, EnginePlan(name, workspace_bytes)))
        if not self._unwanted or not plans:
            return _Planned(filtered, plans)
        graph = self._enumerated(convolution, [])
        for name, (index, _) in list(plans.items()):
            # The heuristics answer alike; were they not to, the plan would be another one, and is left out.
            if not self._built(graph, index) or graph.get_plan_name_at_index(index) != name:
                del plans[name]
        return _Planned(graph, plans)

    def _built(self, graph: Any, index: int) -> bool:
        """Build a plan; False where a note excludes it, or cuDNN finds that it cannot be run after all."""
        try:
            graph.build_plan_at_index(index)
        except self.refusals:
            return False
        except ValueError:  # how the front end says from 1.28 on that a plan is excluded
            return False
        return True

    @cached_property
    def _unwanted(self) -> list[Any]:
        """The numerical notes of plans that the options exclude."""
        notes = self._cudnn.numerical_note
        unwanted = []
        if not self._allowed.tf32:
            unwanted += [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS, notes.REDUCED_PRECISION_REDUCTION]
        if not self._allowed.nondeterministic:
            unwanted.append(notes.NONDETERMINISTIC)
        return unwanted

    def _enumerated(self, convolution: Convolution, unwanted: Sequence[Any]) -> Any:
        """The graph with its plans enumerated, none built, those excluded that have one of the ``unwanted`` notes.

        None where cuDNN refuses the convolution.
        """
        cudnn = self._cudnn
        graph = self._graph(convolution)
        modes = cudnn.heur_mode
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([modes.A, modes.B, modes.FALLBACK])
        except cudnn.cudnnGraphNotSupportedError:
            return None
        except RuntimeError as error:
            raise BackendError(
                f"cuDNN cannot plan {convolution}: {first_line(error)}; see CUDNN_LOGLEVEL_DBG"
            ) from None
        if unwanted:
            graph.deselect_numeric_notes(list(unwanted))
        return graph

    def _graph(self, convolution: Convolution) -> Any:
        cudnn = self._cudnn
        fp32 = cudnn.data_type.FLOAT
        graph = cudnn.pygraph(io_data_type=fp32, intermediate_data_type=fp32, compute_data_type=fp32, **self._device)

        def tensor(name: str, layout: TensorLayout) -> Any:
            return graph.tensor(
                name=name, dim=list(layout.shape), stride=list(layout.strides), data_type=fp32, uid=UIDS[name]
            )

        def shaped(result: Any) -> Any:
            # Said of every step, since the front end would take intermediate results to be channels-last.
            return result.set_dim(list(convolution.y.shape)).set_stride(list(convolution.y.strides))

        y = graph.conv_fprop(
            image=tensor("x", convolution.x),
            weight=tensor("w", convolution.w),
            pre_padding=list(convolution.pad_before),
            post_padding=list(convolution.pad_after),
            stride=list(convolution.strides),
            dilation=list(convolution.dilations),
            compute_data_type=fp32,
        )
        if convolution.bias:
            filters, rank = convolution.y.shape[1], len(convolution.y.shape)
            ones = (1,) * (rank - 2)
            layout = TensorLayout((1, filters, *ones), (filters, 1, *ones))
            y = graph.add(a=shaped(y), b=tensor("b", layout))
        if convolution.relu:
            y = graph.relu(input=shaped(y))
        shaped(y).set_output(True).set_data_type(fp32).set_uid(UIDS["y"])
        return graph


def _version(number: int) -> str:
    """``91900`` as ``9.19.0``."""
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"
