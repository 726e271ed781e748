"""cuDNN through its graph front end: which execution plans there are for a convolution, and how one is executed.

Plans are enumerated by cuDNN's heuristics, filtered by numerical notes, and named by cuDNN's own tags (engine and
knobs). Pointers are raw addresses: the front end's other way in, DLPack, synchronises with the legacy stream. Without
a GPU the same plans are enumerated from a description of one (``properties``), though nothing can be executed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from iossim.backends.cupy_cudnn.convolution import (
    Asked,
    BackwardData,
    Convolution,
    FusedAttention,
    Product,
    TensorLayout,
)
from iossim.backends.cupy_cudnn.cudnn_library import make_findable, version_text
from iossim.backends.cupy_cudnn.options import PRECISIONS, CudnnOptions
from iossim.backends.cupy_cudnn.views import channels_last, row_major
from iossim.base.errors import first_line
from iossim.execution.backend import BackendError
from iossim.ir.types import DType, Precision

if TYPE_CHECKING:
    import cudnn
    from cupy.cuda import Stream

#: Opaque: a handle of cuDNN's, or those of a stream in all libraries.
Handle = Any
#: Issues a request to a handle's stream: from the addresses of its operands, that of its workspace, and the handle.
Executable = Callable[[Mapping[str, int], int, Handle], None]
#: What each operand is called in the variant pack.
UIDS = {"x": 1, "w": 2, "b": 3, "y": 4, "z": 5, "q": 6, "k": 7, "v": 8, "m": 9} | {f"e{n}": 10 + n for n in range(90)}
#: Steps of a graph, by their names in :mod:`iossim.ir.ops.unary`.
ACTIVATIONS = {name: name for name in ("relu", "sigmoid", "tanh", "gelu", "swish")} | {"gelu_tanh": "gelu_approx_tanh"}
_TYPES = {DType.FLOAT32: "FLOAT", DType.FLOAT16: "HALF", DType.BFLOAT16: "BFLOAT16", DType.INT8: "INT8"}
#: So many plans are tried of what is compiled for its activation: one of each engine, each compiled when it is built.
MOST_COMPILED = 4


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One way in which cuDNN runs a convolution: its name for it, and the workspace.

    What is planned for fewer SMs than there are says for how many: ``eng11_k2=1@66``.
    """

    name: str
    workspace_bytes: int


def target_of(name: str) -> int:
    """For how many SMs a plan of this name is; 0 for all."""
    return int(name.partition("@")[2] or 0)


def target_text(sms: int) -> str:
    """Suffix of the name of a plan for so many SMs; none for all of them."""
    return f"@{sms}" if sms else ""


def engines_first(names: Iterable[str]) -> list[str]:
    """Names of plans, ranked, such that each engine comes once before any comes twice.

    A name is the engine's with its knobs, as cuDNN writes it (``eng11_k2=1_k4=3``). Plans of one engine that differ
    in knobs take about the same time; engines do not, and a ranking lists an engine's knobs in a row.
    """
    seen: Counter[str] = Counter()

    def turn(name: str) -> int:
        seen[name.partition("_")[0]] += 1
        return seen[name.partition("_")[0]]

    return sorted(names, key=turn)


@dataclass(frozen=True)
class _Planned:
    """A graph of the front end (None where cuDNN refuses it), the index of each name, and what was built of them.

    A plan that an option excludes, or that cannot be built after all, is None.
    """

    graph: cudnn.pygraph
    indices: Mapping[str, int]
    plans: dict[str, EnginePlan | None] = field(default_factory=dict)
    #: Why there is no graph, or why plans were not built: what cuDNN said.
    refused: list[str] = field(default_factory=list)


class CudnnGraphs:
    """Convolutions of one device by the plans that the options ``allowed`` permit.

    ``properties`` is the JSON text of a device that is not there; without it, plans are for the current one.
    """

    def __init__(self, allowed: CudnnOptions, properties: str | None = None) -> None:
        make_findable()
        import cudnn

        self._cudnn: ModuleType = cudnn
        self._allowed = allowed
        #: Exceptions by which it refuses a plan that it offered; a device that is broken may raise them, too.
        self.refusals: tuple[type[Exception], ...] = (cudnn.cudnnGraphNotSupportedError, RuntimeError)
        self._device: dict[str, object] = (
            {"handle": cudnn.create_handle()}
            if properties is None
            else {"device_property": cudnn.create_device_properties(properties)}
        )
        self._types = {dtype: getattr(cudnn.data_type, name) for dtype, name in _TYPES.items()}
        self._planned = cache(self._ranked)
        #: Number of plans built so far.
        self.built = 0

    @property
    def versions(self) -> tuple[tuple[str, str], ...]:
        return (
            ("cudnn", version_text(int(self._cudnn.backend_version()))),
            ("cudnn-frontend", str(self._cudnn.__version__)),
        )

    def handle(self, stream: Stream) -> Handle:
        """A handle whose calls go to the stream."""
        handle = self._cudnn.create_handle()
        self._cudnn.set_stream(handle, stream.ptr)
        return handle

    def plans(self, convolution: Asked, sms: int = 0) -> Iterator[EnginePlan]:
        """The plans that the options allow, for so many SMs (0: all), each name once, by cuDNN's heuristics,
        :func:`engines_first`.

        Each is built when it is asked for, if it was not before; those that cannot be built are left out.
        """
        for name in self._planned(convolution, sms).indices:
            plan = self.named(convolution, name)
            if plan is not None:
                yield plan

    def planned_names(self, convolution: Asked) -> tuple[str, ...]:
        """The plans that cuDNN names, of which the device, or an option, may refuse some yet."""
        return tuple(self._planned(convolution, 0).indices)

    def named(self, convolution: Asked, name: str) -> EnginePlan | None:
        """The plan of that name alone, built; None where it is not among :meth:`plans` for its SMs."""
        planned = self._planned(convolution, target_of(name))
        if name not in planned.plans:
            planned.plans[name] = self._build(planned, name) if name in planned.indices else None
        return planned.plans[name]

    def refusal(self, convolution: Asked) -> str:
        """cuDNN's own reason for having no plan, or not building one; empty where it gave none."""
        return next(iter(self._planned(convolution, 0).refused), "")

    def bind(self, convolution: Asked, plan: str) -> Executable:
        """The plan of that name, ready to execute; raises KeyError where it is not among :meth:`plans`."""
        if self.named(convolution, plan) is None:
            raise KeyError(plan)
        planned = self._planned(convolution, target_of(plan))
        return partial(_execute, planned.graph, planned.indices[plan])

    def _ranked(self, convolution: Asked, sms: int) -> _Planned:
        """The names of a convolution's plans in the order of :meth:`plans`, none built yet."""
        if isinstance(convolution, Product) and convolution.dtype is DType.FLOAT32 and not self._allowed.tf32:
            return _Planned(None, {}, refused=["cuDNN multiplies stacks of matrices in TF32, not in fp32"])
        refused: list[str] = []
        graph = self._enumerated(convolution, sms, refused)
        if graph is None:
            return _Planned(None, {}, refused=refused)
        indices: dict[str, int] = {}
        for index in range(graph.get_execution_plan_count()):
            indices.setdefault(f"{graph.get_plan_name_at_index(index)}{target_text(sms)}", index)
        most = MOST_COMPILED if convolution.compiles_activation else None
        return _Planned(graph, {name: indices[name] for name in engines_first(indices)[:most]})

    def _build(self, planned: _Planned, name: str) -> EnginePlan | None:
        """Build a plan; None where a note excludes it, or cuDNN finds that it cannot be run after all."""
        graph, index = planned.graph, planned.indices[name]
        try:
            graph.build_plan_at_index(index)
        except self.refusals as error:
            planned.refused.append(first_line(error))
            return None
        except ValueError:  # how the front end says from 1.28 on that a plan is excluded
            return None
        self.built += 1
        return EnginePlan(name, int(graph.get_workspace_size_plan_at_index(index)))

    def _unwanted(self, dtype: DType) -> list[cudnn.numerical_note]:
        """The numerical notes of plans that the options exclude, or that compute in less than is stored.

        Numbers of 16 bits are multiplied by tensor cores without loss; sums are of fp32, unless fp16 is allowed.
        """
        notes = self._cudnn.numerical_note
        unwanted = []
        if dtype is not DType.FLOAT32:
            unwanted += [notes.DOWN_CONVERT_INPUTS]
            unwanted += [] if self._sums_in_half(dtype) else [notes.REDUCED_PRECISION_REDUCTION]
        elif not self._allowed.tf32:
            unwanted += [notes.TENSOR_CORE, notes.DOWN_CONVERT_INPUTS, notes.REDUCED_PRECISION_REDUCTION]
        if not self._allowed.nondeterministic:
            unwanted.append(notes.NONDETERMINISTIC)
        return unwanted

    def _enumerated(self, convolution: Asked, sms: int, refused: list[str]) -> cudnn.pygraph | None:
        """The graph with its plans enumerated, none built, those excluded that the options do not allow.

        None where cuDNN refuses the convolution: why is added to ``refused``.
        """
        cudnn = self._cudnn
        # cuDNN compiles all of its products and attentions when they are built, activations but for ReLU, and what it
        # ranks first of depthwise convolutions of 16 bits with channels last, ``conv2d_c1_k1_nhwc``.
        compiles = not isinstance(convolution, Convolution) or convolution.is_depthwise
        may_compile = self._allowed.runtime_compiled or compiles or convolution.compiles_activation
        modes = cudnn.heur_mode
        try:
            graph = self._described(convolution, sms)
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([modes.A, modes.B, modes.FALLBACK])
        except cudnn.cudnnGraphNotSupportedError as error:
            refused.append(first_line(error))
            return None
        except (RuntimeError, TypeError, ValueError) as error:
            if isinstance(convolution, FusedAttention):  # which can be computed apart, whatever the front end lacks
                refused.append(first_line(error))
                return None
            raise BackendError(
                f"cuDNN cannot plan {convolution}: {first_line(error)}; see CUDNN_LOGLEVEL_DBG"
            ) from None
        unwanted = self._unwanted(convolution.dtype)
        if unwanted or not may_compile:
            graph.deselect_numeric_notes(unwanted)
            if not may_compile:
                graph.deselect_behavior_notes([cudnn.behavior_note.RUNTIME_COMPILATION])
            # cuDNN itself refuses from now on to build what is excluded. The front end's own list of it is for plans
            # that are written in Python, and there are none of convolutions; but from 1.28 on it goes through that
            # list at each execution, and takes longer than all else that the host does for it.
            getattr(graph, "_note_filters", []).clear()
        return graph

    def _described(self, asked: Asked, sms: int) -> cudnn.pygraph:
        """The graph of the front end for so many SMs, not validated yet."""
        stored, types = self._types[asked.dtype], self._cudnn.data_type
        is_whole = asked.dtype is DType.INT8
        made = types.INT32 if is_whole else types.FLOAT  # between the steps
        sums = types.HALF if self._sums_in_half(asked.dtype) else made
        kinds = {"io_data_type": stored, "intermediate_data_type": made, "compute_data_type": made}
        graph = self._cudnn.pygraph(**kinds, sm_count=sms or None, **self._device)

        def tensor(name: str, layout: TensorLayout, dtype: DType | None = None) -> cudnn.tensor:
            lies = {"dim": list(layout.shape), "stride": list(layout.strides)}
            return graph.tensor(name=name, uid=UIDS[name], data_type=self._types[dtype or asked.dtype], **lies)

        match asked:
            case Product():
                y = graph.matmul(A=tensor("x", asked.x), B=tensor("w", asked.w), compute_data_type=sums)
            case FusedAttention():
                masked = {} if asked.mask is None else {"bias": tensor("m", asked.mask)}
                masked |= {"use_causal_mask": True} if asked.is_causal else {}
                q, k, v = tensor("q", asked.q), tensor("k", asked.k), tensor("v", asked.v)
                y, _ = graph.sdpa(q=q, k=k, v=v, attn_scale=asked.scale, is_inference=True, **masked)
            case Convolution():
                y = _convolved(graph, tensor, asked, sums)
        for name, function, operand, dtype in asked.follows:
            y = _shaped(y, asked.y)
            given = {"a": y, "b": tensor(name, operand, dtype)} if operand else {"input": y}
            y = getattr(graph, ACTIVATIONS.get(function, function))(**given)
        result = _shaped(y, asked.y).set_output(True)
        result.set_data_type(made if is_whole else stored).set_uid(UIDS["y"])
        return graph

    def _sums_in_half(self, dtype: DType) -> bool:
        return self._allowed.sums == "fp16" and dtype is DType.FLOAT16


def _execute(graph: cudnn.pygraph, index: int, addresses: Mapping[str, int], workspace: int, handle: Handle) -> None:
    pack = {UIDS[name]: address for name, address in addresses.items()}
    graph.execute_plan_at_index(pack, workspace, index, handle)


def _convolved(graph: cudnn.pygraph, tensor: Callable[..., object], asked: Convolution, sums: object) -> cudnn.tensor:
    """The result of a convolution; ``tensor`` adds an operand of a name to the graph."""
    x, w = tensor("x", asked.x), tensor("w", asked.w)
    window = {"pre_padding": list(asked.pad_before), "post_padding": list(asked.pad_after)}
    window |= {"stride": list(asked.strides), "dilation": list(asked.dilations)}
    if isinstance(asked, BackwardData):
        return graph.conv_dgrad(loss=x, filter=w, compute_data_type=sums, **window)
    return graph.conv_fprop(image=x, weight=w, compute_data_type=sums, **window)


def _shaped(result: cudnn.tensor, layout: TensorLayout) -> cudnn.tensor:
    """A step's result with its layout; without, the front end would take intermediate ones to be channels-last."""
    return result.set_dim(list(layout.shape)).set_stride(list(layout.strides))


def offers_in_words(library_of: Callable[[Precision], CudnnGraphs]) -> Iterator[str]:
    """A line for each precision: the calls of each layout, and, in 16 bits, why an attention is not one call.

    Asked for with operands of usual size, as networks ask for theirs: by its plans, of which the first is built.
    """
    for precision in (*PRECISIONS, Precision.INT8):
        library, said = library_of(precision), []
        for layout in ("nchw", "nhwc"):
            calls = _usual_calls(precision, layout == "nhwc").items()
            said.append(f"{layout} {', '.join(name for name, asked in calls if any(library.plans(asked))) or 'none'}")
        if precision.storage.bytes == 2:
            heads = TensorLayout((1, 12, 128, 64), (128 * 768, 64, 768, 1))
            asked = FusedAttention(heads, heads, heads, heads, 0.125, precision.storage)
            is_one = any(library.plans(asked))
            said.append("attention" if is_one else f"attention apart ({library.refusal(asked) or 'no plan'})")
        yield f"{precision}: {'; '.join(said)}"


def _usual_calls(precision: Precision, last: bool) -> dict[str, Convolution]:
    def layout(*shape: int) -> TensorLayout:
        return TensorLayout(shape, channels_last(shape) if last else row_major(shape))

    x, w, one = layout(8, 64, 28, 28), layout(64, 64, 3, 3), (1, 1)
    plain = Convolution(x, w, x, one, one, one, one, dtype=precision.storage, last=last)
    if precision is Precision.INT8:  # scales and zero points are applied after it
        return {"conv": plain} if last else {}
    fused = replace(plain, bias=True, activation="relu")
    return {"conv": plain, "conv+bias+relu": fused, "conv+residual+bias+relu": replace(fused, z=x)}
