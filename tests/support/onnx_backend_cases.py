"""ONNX's own backend cases through import, plan and executor: which pass, and why the others do not.

Kinds are ``node`` (generated), ``frozen`` (the same with parameters as weights), ``simple``, ``real``, ``pytorch-converted`` and
``pytorch-operator``.
A case passes if the plan of its sequential schedule, in place and in one arena, makes the outputs that ONNX expects,
within ONNX's own tolerances; a model that folds away at import passes by its constants.
"""

import re
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import numpy as np
import onnx
from checked_execution import execute
from onnx import numpy_helper
from onnx_of_op import import_onnx, run_onnxruntime

from iossim.base.errors import IossimError
from iossim.cost.random import RandomCostModel
from iossim.execution.lower import lower_schedule
from iossim.execution.memory import plan_memory
from iossim.ir.op import Array
from iossim.models.onnx.export import export_graph
from iossim.models.partition import network_of
from iossim.models.passes.blocks import cut_blocks
from iossim.models.passes.pipeline import canonicalise
from iossim.search.options import SearchOptions
from iossim.search.scheduler import schedule

FROZEN = "frozen"
NOT_IMPORTED, NOT_RUN = "not imported", "run by ONNX Runtime neither as it is nor exported"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

#: What the message of a refusal becomes in the table: the first pattern that it matches.
_REASONS = {
    r"makes a sequence|makes a optional|makes an optional|is no tensor": "sequences and optionals",
    r"STRING": "strings",
    r"graphs of its own": "control flow",
    r"random numbers|training": "random numbers, training",
    r"empty tensor|dimension of 0": "empty tensors",
    r"computed at run time|depends on data|neither ONNX nor": "shapes that depend on data",
    r"no operators of|no such operator": "operators that ONNX does not define",
    r"cannot be computed": "neither ONNX's reference nor ONNX Runtime computes it",
    r"element type": "element types",
    r"would be empty": "empty tensors",
    r"uses operator set": "operator sets before 6",
    r"is not valid": "refused as not valid",
}


@dataclass(frozen=True)
class Case:
    """A model, what it is given and what it must make; ``path`` is where it lies, if it does."""

    name: str
    model: onnx.ModelProto
    path: Path | None
    data: tuple[tuple[tuple[Any, ...], tuple[Any, ...]], ...]
    relative: float
    absolute: float


@dataclass(frozen=True)
class Outcome:
    """``reason`` is empty for a case that passes; ``foreign`` lists the operators that were carried whole."""

    case: str
    reason: str
    detail: str
    foreign: tuple[str, ...] = ()


def load_cases(kind: str) -> list[Case]:
    """All cases of a kind, by name."""
    from onnx.backend.test.loader import load_model_tests

    if kind == "node":
        return load_node_cases(node_modules())
    return sorted((_case(each) for each in load_model_tests(kind=kind)), key=lambda case: case.name)


def node_modules() -> list[str]:
    """The modules that generate cases, an operator or a few each."""
    import onnx.backend.test.case.node as generators

    return sorted(module.name for module in walk_packages(generators.__path__, f"{generators.__name__}."))


def load_node_cases(modules: Sequence[str]) -> list[Case]:
    """The generated cases of some modules, by name; generating all takes long."""
    return sorted((case for module in modules for case in _generated(module)), key=lambda case: case.name)


@cache
def _generated(module: str) -> tuple[Case, ...]:
    """The cases that a module adds to ONNX's list when it is imported."""
    import onnx.backend.test.case.node as generators

    before = len(generators._NodeTestCases)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numbers that overflow where cases are generated
        import_module(module)
    return tuple(_case(each) for each in generators._NodeTestCases[before:])


def _case(found: Any) -> Case:
    if found.model is not None:
        data = tuple((tuple(given), tuple(expected)) for given, expected in found.data_sets)
        return Case(found.name, found.model, None, data, found.rtol, found.atol)
    if found.url is not None:  # a light model: its input is made, its output stored
        path = LIGHT / Path(found.url).name
        model = onnx.load(path)
        return Case(found.name, model, path, (_light_data(model, path),), found.rtol, found.atol)
    path = Path(found.model_dir) / "model.onnx"
    model = onnx.load(path)
    folders = sorted(Path(found.model_dir).glob("test_data_set_*"))
    data = tuple((_stored(folder, "input", model), _stored(folder, "output", model)) for folder in folders)
    return Case(found.name, model, path, data, found.rtol, found.atol)


def _light_data(model: onnx.ModelProto, path: Path) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    from onnx.backend.test.runner import Runner

    weights = {tensor.name for tensor in model.graph.initializer}
    given = tuple(Runner.generate_dummy_data(value) for value in model.graph.input if value.name not in weights)
    stored = onnx.TensorProto.FromString(path.with_name(f"{path.stem}_output_0.pb").read_bytes())
    return given, (numpy_helper.to_array(stored),)


def _stored(folder: Path, role: str, model: onnx.ModelProto) -> tuple[Any, ...]:
    values = model.graph.input if role == "input" else model.graph.output
    count = len(list(folder.glob(f"{role}_*.pb")))
    return tuple(_parsed(folder / f"{role}_{index}.pb", values[index].type) for index in range(count))


def _parsed(path: Path, kind: onnx.TypeProto) -> Any:
    data = path.read_bytes()
    match kind.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
        case _:
            return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def frozen(case: Case) -> Case:
    """The case with the inputs that say shapes, axes, counts and scales as weights, as exporters write them.

    These are all but the first that are whole numbers, or a single number, or a list; generated cases give them at run time.
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    ((given, expected),) = case.data
    kept: list[Any] = []
    names: set[str] = set()
    for value, item in zip(model.graph.input, given, strict=False):
        array = numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item
        is_parameter = isinstance(array, np.ndarray) and (array.ndim < 2 or array.dtype.kind in "iu")
        if not kept or not is_parameter or array.dtype.kind not in "iufb":
            kept.append(item)
        else:
            model.graph.initializer.append(numpy_helper.from_array(array, value.name))
            names.add(value.name)
    inputs = [value for value in model.graph.input if value.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return replace(case, model=model, path=None, data=((tuple(kept), expected),))


def run_case(case: Case, folder: Path) -> Outcome:
    """Import, plan and execute a case; ``folder`` is where its model is written if it lies nowhere."""
    path = _in_file(case, folder)
    foreign: tuple[str, ...] = ()
    try:
        for given, expected in case.data:
            feeds, shapes = _feeds(case.model, given)
            outputs, foreign = _outputs(path, feeds, shapes)
            _compare(outputs, expected, case)
    except IossimError as error:
        text = str(error).replace(str(path), "FILE")
        reasons = (reason for pattern, reason in _REASONS.items() if re.search(pattern, text))
        return Outcome(case.name, next(reasons, "refused otherwise"), text, foreign)
    except AssertionError as error:
        return Outcome(case.name, "other outputs than expected", _line(error), foreign)
    except Exception as error:  # a defect: a refusal is an IossimError
        return Outcome(case.name, "TRACEBACK", f"{type(error).__name__}: {_line(error)}", foreign)
    return Outcome(case.name, "", "", foreign)


def round_trip(case: Case, folder: Path) -> Outcome:
    """Import and export a case; what ONNX Runtime makes of the export must be what ONNX expects.

    A case that cannot be imported, or that ONNX Runtime runs neither as it is nor exported, is no round trip.
    """
    path = _in_file(case, folder)
    ((given, expected), *_) = case.data
    feeds, shapes = _feeds(case.model, given)
    try:
        graph = canonicalise(import_onnx(path, shapes=shapes))
    except IossimError as error:
        return Outcome(case.name, NOT_IMPORTED, str(error))
    read = {name: np.asarray(feeds[name]) for name in graph.inputs}
    own = _run(path, {name: np.asarray(array) for name, array in feeds.items()})
    try:
        model = export_graph(graph)
    except IossimError as error:
        return Outcome(case.name, "not exported", str(error))
    made = _run(model, read)
    if isinstance(made, str):
        return Outcome(case.name, NOT_RUN if isinstance(own, str) else "export is not run", made)
    # ONNX Runtime's arrays of 8-bit floats are bytes.
    types = [graph.types[name].dtype for name in graph.outputs]
    made = [array.view(dtype.numpy) if dtype.is_narrow else array for array, dtype in zip(made, types, strict=True)]
    try:
        _compare(made, expected, case)
    except AssertionError as error:
        # Where ONNX Runtime makes the same of the case itself, it is not the export that differs.
        same = not isinstance(own, str) and all(
            np.array_equal(one, other, equal_nan=True) for one, other in zip(own, made, strict=True)
        )
        return Outcome(case.name, "" if same else "other outputs than expected", _line(error))
    return Outcome(case.name, "", "")


def _in_file(case: Case, folder: Path) -> Path:
    """Path of a case's model; a model without a file is written to ``folder``."""
    if case.path is None:
        (folder / "model.onnx").write_bytes(case.model.SerializeToString())
    return case.path or folder / "model.onnx"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _run(model: Path | onnx.ModelProto, feeds: dict[str, Array]) -> list[Array] | str:
    """What ONNX Runtime makes of a model, or why it does not run it."""
    try:
        return run_onnxruntime(str(model) if isinstance(model, Path) else model, feeds)
    except Exception as error:  # its exceptions have no base class of their own
        return f"{type(error).__name__}: {_line(error)}"


def _feeds(model: onnx.ModelProto, given: tuple[Any, ...]) -> tuple[dict[str, Array], dict[str, tuple[int, ...]]]:
    """Arrays by name, and the shapes of those inputs that the model leaves open."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    feeds: dict[str, Any] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for value, item in zip(inputs, given, strict=False):
        array = numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item
        feeds[value.name] = array
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type"):
            continue
        if not tensor.HasField("shape") or any(axis.dim_value == 0 for axis in tensor.shape.dim):
            shapes[value.name] = np.shape(array)
    return feeds, shapes


def _outputs(
    path: Path, feeds: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[list[Array], tuple[str, ...]]:
    graph = canonicalise(import_onnx(path, shapes=shapes))
    made = {name: graph.constants[name].load() for name in graph.outputs if name in graph.constants}
    foreign: tuple[str, ...] = ()
    if graph.nodes:
        network = cut_blocks(network_of(graph, path.stem))
        foreign = tuple(sorted({node.op.op_type for node in graph.nodes if node.op.kind == "foreign"}))
        found = schedule(network, RandomCostModel(), "sequential", SearchOptions())
        plan = plan_memory(lower_schedule(found, network, in_place=True))
        made |= execute(plan, network, {name: np.asarray(feeds[name]) for name in graph.inputs})
    return [made[name] if name in made else feeds[name] for name in graph.outputs], foreign


def _compare(outputs: list[Array], expected: tuple[Any, ...], case: Case) -> None:
    from onnx.backend.test.runner import Runner

    wanted = [numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item for item in expected]
    with np.errstate(all="ignore"):
        Runner.assert_similar_outputs(wanted, outputs, case.relative, case.absolute)


def run_kind(kind: str, run: Callable[[Case, Path], Outcome] = run_case) -> list[Outcome]:
    """All cases of a kind; ``frozen`` are the generated ones with their parameters as weights."""
    cases = [frozen(case) for case in load_cases("node")] if kind == FROZEN else load_cases(kind)
    with tempfile.TemporaryDirectory() as folder:
        return [run(case, Path(folder)) for case in cases]
