"""A module that runs its schedule for calls that match the compilation, and otherwise eagerly, with a warning.

Its file has for each shape the graph as ONNX, the schedule, and the algorithm of each launch, in PyTorch's format, read
without unpickling objects. The module's own weights are not included: they come from the module that it is loaded for.
"""

from __future__ import annotations

import inspect
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, NoReturn

import torch

from iossim.backends.torch_cuda.tensors import one_thread, to_array
from iossim.base.errors import IossimError, ModelError
from iossim.base.user_files import write_atomically
from iossim.execution.backend import Choice
from iossim.ir.constants import ArrayConstant, Constant
from iossim.ir.network import Network
from iossim.models.onnx.file import OnnxModel
from iossim.models.options import LoadOptions
from iossim.models.sources.onnx_file import network_of_model
from iossim.schedule.fit import fit
from iossim.schedule.schedule import StreamSchedule
from iossim.torch.bound import Bound, Chosen, Form, form, leaves, named_tensors, settings, told
from iossim.torch.state import State

#: Version of the files of compiled modules.
FORMAT = 1
#: Number of shapes that are compiled before others run eagerly, the same as torch.compile's.
MOST_SHAPES = 8
#: The path and form of each argument, or part of one.
Forms = tuple[tuple[str, Form], ...]
#: Compiles a module for arguments by name.
Compile = Callable[[Mapping[str, object]], Bound]


class CompiledModule(torch.nn.Module):  # type: ignore[misc]  # of a library that is not read
    """Runs a module's schedule; it is called like the module, returns the same, and has the module's attributes.

    The module is its only part, ``module``, with which the keys of a state dict begin. With ``again`` other shapes and
    strides are compiled at their first call, :data:`MOST_SHAPES` of them. Calls that do not match run eagerly, with one
    warning per reason: other arguments (shape, strides, element type, device, or a value that is no tensor), a changed
    module, other settings of PyTorch, a requested gradient. Calls from several threads run sequentially. It can be
    neither copied nor pickled: :meth:`save` it.
    """

    # Slots are not in its dict: what it keeps of its calls is no state of a module that it is part of.
    __slots__ = (
        *("_again", "_bounds", "_name", "_on_gpu", "_place", "_settings", "_signature", "_state", "_warned"),
        *("network", "plan", "schedule"),
    )

    _is_torch_compile = False  # torch.compile sets it through what it returns: it is none of the module's attributes

    def __init__(self, module: torch.nn.Module, bounds: Sequence[Bound], again: Compile | None = None) -> None:
        super().__init__()
        first = bounds[0]
        self.training = module.training
        self.module, self.network, self.schedule, self.plan = module, first.network, first.schedule, first.plan
        self._name, self._place, self._again = type(module).__name__, first.place, again
        self._signature = inspect.signature(module.forward)
        #: By the forms of arguments; None for shapes that run eagerly.
        self._bounds: dict[Forms, Bound | None] = {}
        for bound in bounds:
            example = inspect.BoundArguments(self._signature, dict(bound.given))
            example.apply_defaults()
            self._bounds[_forms(leaves(example.arguments))] = bound
        self._settings = settings(first.place)
        self._on_gpu = any(getattr(value, "is_cuda", False) for value in leaves(first.given).values())
        self._warned: set[str] = set()
        self._state = State(module)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *arguments: object, **keywords: object) -> object:
        """The module's outputs, by its schedule; by the module itself while PyTorch traces or transforms the call."""
        call = self._signature.bind(*arguments, **keywords)
        given = dict(call.arguments)
        call.apply_defaults()
        here = leaves(call.arguments)
        with one_thread:  # compiling a shape changes the module for a while
            if torch.compiler.is_exporting() or torch.jit.is_tracing() or torch._C._are_functorch_transforms_active():
                return self.module(*arguments, **keywords)
            kind, reason = self._unfit(here)
            if not reason:
                kind = "arguments"
                bound, reason = self._bound(given, here)
                if bound is not None:
                    return bound.run(here)
            if kind not in self._warned:
                self._warned.add(kind)
                warnings.warn(f"iossim.torch: {reason}; this call runs eagerly", stacklevel=5)
            return self.module(*arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if name == "module" else getattr(self.module, name)

    def __setattr__(self, name: str, value: object) -> None:
        own = name == "module" or name in vars(self) or hasattr(type(self), name)
        super().__setattr__(name, value) if own else setattr(self.module, name, value)

    def __repr__(self) -> str:
        return f"<CompiledModule {self._name}: {self.schedule!r}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise ModelError(
            f"compiled module {self._name} holds memory of its own and cannot be copied or pickled; .save(path) what "
            "was compiled, or copy its .module"
        )

    def save(self, path: str | Path) -> None:
        """Write the schedules of all shapes, with the algorithm of each launch, for :func:`iossim.torch.load`.

        Weights that are not tensors of the module are included. Raises ModelError if the file cannot be written.
        """
        shapes = []
        for bound in filter(None, self._bounds.values()):
            constants = bound.network.graph.constants
            shared = [name for name, constant in constants.items() if constant in bound.shared_weights]
            shapes.append(
                {
                    "given": dict(bound.given),
                    "model": torch.frombuffer(bytearray(_model(bound.network, shared)), dtype=torch.uint8),
                    "shared": shared,
                    "schedule": bound.schedule.model_dump_json(),
                    "chosen": {units: astuple(choice) for units, choice in bound.chosen.items()},
                }
            )
        made = io.BytesIO()
        torch.save({"format": FORMAT, "module": self._name, "shapes": shapes}, made)
        write_atomically(Path(path), made.getvalue(), "compiled module", ModelError)

    def _bound(self, given: Mapping[str, object], here: Mapping[str, object]) -> tuple[Bound | None, str]:
        """The bound schedule for a call, or the reason why there is none; compiles new shapes."""
        forms = _forms(here)
        if (found := self._bounds.get(forms)) is not None:
            return found, ""
        now, then = dict(forms), dict(next(iter(self._bounds)))
        one = next((path for path in {**now, **then} if now.get(path) != then.get(path)), "")
        here_is, compiled_was = (told(each.get(one, (str, "left out"))) for each in (now, then))
        reason = f"{one} is {here_is}, compiled was {compiled_was}"
        alike, compiled = ([(path, seen[:3]) for path, seen in each.items()] for each in (now, then))  # but in shape
        if self._again is None or alike != compiled or forms in self._bounds:
            return None, reason
        if len(self._bounds) >= MOST_SHAPES:
            return None, f"{reason}, and {MOST_SHAPES} shapes in all"
        with torch.inference_mode(mode=False):
            try:
                found = self._again(given)
            except IossimError as error:
                reason = f"{reason}; {error}"
            self._bounds[forms] = found
            self._state = State(self.module)
        return found, reason

    def _unfit(self, given: Mapping[str, object]) -> tuple[str, str]:
        """The kind of mismatch between a call and the compilation, and a sentence on it; empty if they match."""
        if self._on_gpu and torch.cuda.is_current_stream_capturing():
            return "capture", "the caller captures a CUDA graph"
        if path := self._state.change():
            return path, f"{path} of module {self._name} changed since it was compiled; compile it again"
        for (name, then), now in zip(self._settings.items(), settings(self._place).values(), strict=True):
            if then != now:
                return name, f"{name} is {now}, compiled was {then}"
        if torch.is_grad_enabled():
            for name, value in given.items():
                if isinstance(value, torch.Tensor) and value.requires_grad:
                    return "gradient", f"{name} asks for a gradient"
            if any(tensor.requires_grad for tensor in self._state.tensors):
                return "gradient", "parameters ask for gradients; call it under torch.no_grad()"
        return "", ""


def _forms(here: Mapping[str, object]) -> Forms:
    return tuple((path, form(value)) for path, value in here.items())


def read_compiled(path: Path, module: torch.nn.Module, bind: Callable[..., Bound]) -> list[Bound]:
    """The saved shapes of a module, each bound by ``bind``; raises ModelError for the file of another."""
    import onnx

    name, weights, bounds = type(module).__name__, named_tensors(module), []
    try:
        found = torch.load(path, weights_only=True)
        if found["format"] != FORMAT:
            raise ValueError(f"its format is {found['format']!r}")
        if found["module"] != name:
            raise ModelError(f"{str(path)!r} was saved of a {found['module']}, not of a {name}; load it with that")
        for saved in found["shapes"]:
            own: dict[str, Constant] = {each: ArrayConstant(to_array(weights[each])) for each in saved["shared"]}
            model = onnx.ModelProto.FromString(saved["model"].numpy().tobytes())
            network = network_of_model(OnnxModel(model, Path(f"module {name}"), name, own), LoadOptions())
            schedule = StreamSchedule.model_validate_json(saved["schedule"])
            fit(schedule, network)
            chosen: Chosen = {units: Choice(*choice) for units, choice in saved["chosen"].items()}
            bounds.append(bind(network, schedule, saved["given"], chosen))
        if not bounds:
            raise ValueError("it has no shapes")
        return bounds
    except IossimError:
        raise
    except OSError as error:
        raise ModelError(f"cannot read {str(path)!r}: {error.strerror}; compile the module and save it") from None
    except Exception as error:  # of libraries that read or run what was damaged
        cause = f"{type(error).__name__}: {str(error).rpartition('WeightsUnpickler error: ')[2]}"
        raise ModelError(
            f"{str(path)!r} is no compiled module that fits this {name} ({' '.join(cause.split())[:240]}); compile it "
            "and save it again"
        ) from None


def _model(network: Network, shared: Sequence[str]) -> bytes:
    """The graph as ONNX, without the module's own weights."""
    from onnx import TensorProto, numpy_helper

    from iossim.models.onnx.export import export_graph

    def store(name: str, constant: Constant) -> TensorProto | None:
        return None if name in shared else numpy_helper.from_array(constant.load(), name)

    model = export_graph(network.graph, name=network.name, store=store, network=network)
    return bytes(model.SerializeToString())
