"""PyTorch modules in memory: ``torch.export`` traces, torch's ONNX exporter translates, and the ONNX importer reads.

PyTorch's own operators are unknown here, so that a module exported to a file and one loaded from memory
are the same network. Weights are not copied: an array of the graph is a view of the module's own memory.
"""

from __future__ import annotations

import io
import logging
import os
import pickle
import re
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from importlib.util import find_spec
from inspect import BoundArguments
from pathlib import Path
from pkgutil import resolve_name
from reprlib import repr as shortened
from typing import TYPE_CHECKING

from iossim.base.errors import ModelError, OptionError
from iossim.ir.constants import ArrayConstant, Constant
from iossim.ir.network import ModelSource, Network
from iossim.models.onnx.file import KIND_NOTE, PARAMETER, OnnxModel
from iossim.models.onnx.grouped_products import functions_for
from iossim.models.options import TORCH, LoadOptions
from iossim.models.sources import onnx_file
from iossim.models.sources.torch_operators import carried, respell, translations, untranslated

if TYPE_CHECKING:
    from onnxscript.ir import Graph, Model, Node, Value
    from torch.export import ExportedProgram
    from torch.nn import Module
    from torch.onnx import ONNXProgram
    from torch.utils._pytree import TreeSpec

#: The remedy for a module that PyTorch cannot export.
FROM_FILE = "load an ONNX file of it"


def load(module: object, options: LoadOptions) -> Network:
    """The network of a module; raises ModelError for a source, since its module no longer exists."""
    if isinstance(module, str):
        raise ModelError(
            f"network {module!r} was made in memory, of a PyTorch module; give network=iossim.load(module, inputs), "
            "or as `model` an ONNX file of it, which iossim.load(module, inputs, onnx_file=PATH) writes"
        )
    torch = sys.modules.get("torch")  # not imported for this: before it no module exists
    if options.example_inputs is None and (torch is None or not isinstance(module, torch.nn.Module)):
        raise ModelError(
            f"model {shortened(module)} is no name: give a model of the zoo, the path of an ONNX file, or a PyTorch "
            "module (of a state_dict, the module that it is loaded into)"
        )
    if options.shapes or options.dimensions or options.graphs is not None:
        raise OptionError(
            "a PyTorch module has the shapes of its example inputs; leave shapes, dimensions and graphs out"
        )
    path = options.onnx_file
    if path is not None and path.suffix.lower() != ".onnx":
        raise OptionError(f"onnx_file {str(path)!r} does not end in .onnx; name it so")
    if path is not None:
        save_module(module, options.example_inputs, path)
        return onnx_file.load(path, options)
    model = read_module(module, options.example_inputs)
    return replace(onnx_file.network_of_model(model, options), source=ModelSource(f"{TORCH}{model.name}"))


def read_module(module: object, example_inputs: object) -> OnnxModel:
    """A module in ONNX's form, at the shapes of its example inputs; its network is named after its class."""
    program = _exported(module, example_inputs)
    parameters = frozenset(name for name, value in program.model.graph.initializers.items() if _is_parameter(value))
    weights = _without_weights(program.model)
    name = type(module).__name__
    return OnnxModel(program.model_proto, Path(f"module {name}"), name, weights, parameters)


def save_module(module: object, example_inputs: object, path: Path) -> None:
    """Write the module as an ONNX file, with external weights (``NAME.data``) if they exceed the file's limit."""
    from onnxscript import ir

    program = _exported(module, example_inputs)
    nodes = ir.traversal.RecursiveGraphIterator(program.model.graph)
    for function in functions_for(nodes, program.model.opset_imports[""]):
        made = ir.from_proto(function)
        program.model.functions[made.identifier()] = made
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder, _silence():
            program.save(Path(folder) / path.name)
            # The model last: once it exists, its weights do too.
            for written in sorted(os.listdir(folder), key=lambda name: name == path.name):
                os.replace(Path(folder) / written, path.parent / written)
    except OSError as error:
        raise ModelError(f"cannot write {path}: {error.strerror}; give another path as onnx_file") from None


def _exported(module: object, example_inputs: object) -> ONNXProgram:
    """The ONNX program of a module, its functions inlined and its shape arithmetic folded."""
    for package in ("torch", "onnxscript"):
        if find_spec(package) is None:
            raise ModelError(
                f"a PyTorch module is read by {package}, which is not installed; pip install 'iossim[torch]'"
            )
    import torch

    if not isinstance(module, torch.nn.Module):
        raise ModelError(
            f"{shortened(module)} is not a PyTorch module; give a torch.nn.Module, or the path of an ONNX file"
        )
    name = type(module).__name__
    seen = {*map(id, (*module.parameters(), *module.buffers()))}

    def apart(value: object) -> object:
        if isinstance(value, torch.Tensor) and id(value) in seen:
            return value.detach()  # torch.export takes arguments for one that are one tensor, or one of the module's
        seen.add(id(value))
        return value

    arguments, keywords = torch.utils._pytree.tree_map(apart, call_arguments(example_inputs, name))
    check_inference(module)
    with _silence(), torch.no_grad():
        try:
            traced = _traced(module, arguments, keywords)
        except Exception as error:  # including anything that the module's own code raises
            raise ModelError(
                f"torch.export cannot trace module {name}: {_reason(error)}; change that in the module or its "
                f"example inputs, or {FROM_FILE}"
            ) from None
        import onnxscript.optimizer

        _leave_out_numbers(traced, name)
        try:
            program = _translated(traced)
            onnxscript.optimizer.inline(program.model)
            onnxscript.optimizer.fold_constants(program.model, should_fold=_may_fold)
        except ModelError as error:
            raise ModelError(f"module {name}: {error}") from None
        except Exception as error:  # the exporter passes on exceptions of its translations
            raise ModelError(
                f"torch.onnx cannot export module {name}: {_reason(error)}; change that in the module, or {FROM_FILE}"
            ) from None
    _name_outputs(program.model.graph, traced.call_spec.out_spec)
    return program


def _traced(module: Module, arguments: tuple[object, ...], keywords: dict[str, object]) -> ExportedProgram:
    """A trace; a class of results that PyTorch does not know as a tree, as of a cache, becomes one."""
    import torch

    while True:
        try:
            return torch.export.export(module, arguments, keywords)
        except Exception as error:
            found = re.search(r"Found <class '([\w.]+)'> in output, which is not a known type", str(error))
            if found is None or not _becomes_tree(resolve_name(found[1])):
                raise


def _becomes_tree(kind: type) -> bool:
    """Registers a class as a tree of the tensors in its objects; False for one that has no objects of its own.

    What else an object holds is its pickle, from which each call makes another.
    """
    from torch import Tensor, nn
    from torch.utils import _pytree as pytree

    if kind in pytree.SUPPORTED_NODES or not kind.__dictoffset__ or issubclass(kind, nn.Module):
        return False

    def flatten(value: object) -> tuple[list[Tensor], bytes]:
        tensors: list[Tensor] = []

        class Numbering(pickle.Pickler):
            """Writes a tensor as its number, from 1 on."""

            def persistent_id(self, part: object) -> int | None:
                if not isinstance(part, Tensor):
                    return None
                tensors.append(part)
                return len(tensors)

        Numbering(made := io.BytesIO()).dump(value)
        return tensors, made.getvalue()

    def unflatten(tensors: Iterable[Tensor], rest: bytes) -> object:
        numbered = (None, *tensors)

        class Numbered(pickle.Unpickler):
            def persistent_load(self, number: int) -> Tensor | None:
                return numbered[number]

        return Numbered(io.BytesIO(rest)).load()

    pytree.register_pytree_node(kind, flatten, unflatten)
    return True


def check_inference(module: Module) -> None:
    """Raises ModelError for a module with a part in training mode."""
    for path, part in module.named_modules():
        if part.training:
            where = f"{type(module).__name__}: " + (f"its part {path!r}" if path else "it")
            raise ModelError(f"module {where} is in training mode, and a schedule is for inference; call .eval() first")


def _leave_out_numbers(traced: ExportedProgram, name: str) -> None:
    """Replace outputs of a trace that are whole numbers, flags or text by None, which ONNX's form leaves out.

    Raises ModelError for any other that is no tensor: a fraction may be another at each call.
    """
    for number, spec in enumerate(traced.graph_signature.output_specs):
        if (value := getattr(spec.arg, "value", None)) is not None:
            if not isinstance(value, int | str):
                raise ModelError(f"output {number} of module {name} is {value!r}, no tensor; leave it out")
            spec.arg = replace(spec.arg, value=None)
    (end,) = traced.graph.find_nodes(op="output")
    end.args = (tuple(value if hasattr(value, "name") else None for value in end.args[0]),)


def _translated(traced: ExportedProgram) -> ONNXProgram:
    """A trace in ONNX's form: an operator that proves to be missing, or fails, is carried."""
    import torch

    respell(traced.graph)
    own = translations(traced.graph, traced.graph_signature.user_inputs)
    while True:
        try:
            # Optimise no further than shape arithmetic: fusing batch norms here would copy every weight.
            return torch.onnx.export(traced, dynamo=True, verbose=False, optimize=False, custom_translation_table=own)
        except Exception as error:
            operator = untranslated(error)
            if operator is None or operator in own:
                raise
            own[operator] = carried(operator)


def call_arguments(example_inputs: object, name: str) -> tuple[tuple[object, ...], dict[str, object]]:
    """Example inputs as the arguments of a call of module ``name``, by position and by name; raises ModelError."""
    import torch

    if isinstance(example_inputs, BoundArguments):
        return example_inputs.args, example_inputs.kwargs
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,), {}
    if isinstance(example_inputs, Mapping) and all(isinstance(key, str) for key in example_inputs):
        return (), dict(example_inputs)
    if isinstance(example_inputs, tuple | list):
        return tuple(example_inputs), {}
    raise ModelError(
        f"module {name} needs example inputs, and was given {shortened(example_inputs)}; give a tuple of its "
        "arguments, a dict of them by name, or one tensor"
    )


def _name_outputs(graph: Graph, structure: TreeSpec) -> None:
    """Name outputs of a module that returns a dict by its keys, unless a value has that name already."""
    keys = structure.context
    if not isinstance(keys, Sequence) or len(keys) != len(graph.outputs) or structure.num_leaves != len(keys):
        return
    taken = {value.name for value in graph.inputs} | set(graph.initializers)
    taken |= {value.name for node in graph for value in node.outputs}
    for key, value in zip(keys, list(graph.outputs), strict=True):
        if isinstance(key, str) and key not in taken and not value.is_graph_input() and not value.is_initializer():
            value.name = key
            taken.add(key)


def _is_parameter(value: Value | None) -> bool:
    return value is not None and value.metadata_props.get(KIND_NOTE) == PARAMETER


def _may_fold(node: Node) -> bool | None:
    """False for nodes that depend on a parameter, so that weights keep their names; None leaves it to the optimiser."""
    return False if node.op_type != "Shape" and any(map(_is_parameter, node.inputs)) else None


def _without_weights(model: Model) -> dict[str, Constant]:
    """Remove the weights of an ONNX program; returns them by name, as views of the module's memory."""
    weights: dict[str, Constant] = {}
    for name, value in list(model.graph.initializers.items()):
        array = value.const_value.numpy().view()
        array.flags.writeable = False
        weights[name] = ArrayConstant(array)
        del model.graph.initializers[name]
    return weights


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress warnings, logs, and listings of failed traces."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _reason(error: BaseException) -> str:
    """The first sentence of the root cause: the exporter wraps it in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].split('. ')[0].rstrip('.')[:300]}" if lines else type(error).__name__
