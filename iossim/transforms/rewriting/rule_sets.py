"""Find sets of rules: those that ship, those of plugins, and files.

A package of others adds a set by an entry point ``iossim.rules``, a function that returns YAML text as
:mod:`iossim.transforms.rewriting.rule_file` reads it (:mod:`iossim.base.registry`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from google.protobuf import descriptor_pb2, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

from iossim.base.registry import Extension, Group, Plugin
from iossim.base.shipped_yaml import shipped_files
from iossim.base.user_files import read_text
from iossim.transforms.rewriting.expression import Literal, parse_expression
from iossim.transforms.rewriting.rule import PatternOp, Rule, RuleError
from iossim.transforms.rewriting.rule_file import read_rules

#: TASO's ``OpType`` of the operators in the published file, and our kinds of those without attributes.
_CONV, _RELU, _CONCAT, _SPLIT, _EWADD, _EWMUL, _MATMUL = 3, 8, 12, 13, 16, 17, 18
_PLAIN = {_RELU: "relu", _EWADD: "add", _EWMUL: "mul", _MATMUL: "matmul"}
#: TASO's ``PMParameter``.
_OUTPUTS, _KERNEL, _STRIDES, _PAD, _ACTIVATION, _RANK, _AXIS = 2, (4, 5), (6, 7), 8, 9, 10, 11
#: TASO's ``PaddingMode`` and ``ActiMode``: an operator may compute an activation on its result.
_SAME, _VALID = 0, 1
_NO_ACTIVATION, _WITH_RELU = 0, 2
_MOST_OUTPUTS = 16

#: TASO's messages, proto2: the fields of each, in the order of their numbers from 1.
_MESSAGES = {
    "Parameter": ("key", "value"),
    "Tensor": ("opId", "tsId"),  # a negative opId is an input of the rule
    "Operator": ("type", "input Tensor", "para Parameter"),
    "MapOutput": ("srcOpId", "dstOpId", "srcTsId", "dstTsId"),
    "Rule": ("srcOp Operator", "dstOp Operator", "mappedOutput MapOutput"),
    "RuleCollection": ("rule Rule",),
}


class _DamagedError(Exception):
    """An error in the bytes, or in their contents."""


def read_published(data: bytes, where: str) -> tuple[Rule, ...]:
    """The rules of a ``RuleCollection``, as TASO publishes it, in order; the first is called ``taso-000``.

    What the file leaves open is as in TASO's runtime. The number of groups of a convolution is that of its input's
    channels over those that its weight takes: in a source it is a variable, in a target ``x.shape[1] //
    w.shape[1]``. The sizes of a split in a target are those of the concat that it undoes. Products are of matrices.
    ``where`` names the file in errors.

    Raises RuleError if the bytes are no collection, or hold an operator that no published rule has.
    """
    rules: list[Rule] = []
    try:
        found = messages()["RuleCollection"].FromString(data)
        if lacking := found.FindInitializationErrors():
            raise _DamagedError(f"it lacks {lacking[0]}")
        for rule in found.rule:
            rules.append(_rule(len(rules), rule))
    except (DecodeError, _DamagedError) as error:
        at = f" in its rule {len(rules)}" if rules else ""
        raise RuleError(f"rules {where}: not a rule set of TASO's, or damaged{at}: {error}; fetch it again") from None
    except RuleError as error:
        raise RuleError(f"rules {where}: {error}", error.place) from None
    if not rules:
        raise RuleError(f"rules {where}: holds no rule; give a rule set of TASO's (.pb), or a .yaml file")
    return tuple(rules)


@cache
def messages() -> dict[str, type[Message]]:
    """The classes of TASO's messages by name; all integers are required."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="taso.proto", package="taso", syntax="proto2")
    for name, parts in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, _, held) in enumerate((part.partition(" ") for part in parts), 1):
            many = {"type_name": f".taso.{held}", "label": kinds.LABEL_REPEATED}
            one = {"type": kinds.TYPE_INT64, "label": kinds.LABEL_REQUIRED}
            message.field.add(name=field, number=number, **(many if held else one))
    found = message_factory.GetMessages([file])
    return {name: found[f"taso.{name}"] for name in _MESSAGES}


def _parameters(operator: Message) -> dict[int, int]:
    return {each.key: each.value for each in operator.para}


def _parameter(operator: Message, key: int) -> int:
    if (value := _parameters(operator).get(key)) is None:
        raise _DamagedError(f"an operator of type {operator.type} lacks its parameter {key}")
    return value


def _rule(index: int, message: Message) -> Rule:
    inputs = _input_names([*message.srcOp, *message.dstOp])
    source = _Side("s", inputs, message.srcOp, frozenset())
    target = _Side("t", inputs, message.dstOp, source.ranked & frozenset(inputs.values()))
    conditions = dict.fromkeys([*source.conditions, *target.conditions])
    return Rule(
        f"taso-{index:03d}",
        tuple(source.ops),
        tuple(target.ops),
        tuple(
            (source.tensor(each.srcOpId, each.srcTsId), target.tensor(each.dstOpId, each.dstTsId))
            for each in message.mappedOutput
        ),
        tuple(map(parse_expression, conditions)),
        origin=f"TASO's published rules, number {index} from 0",
    )


def _input_names(operators: Sequence[Message]) -> dict[int, str]:
    """Inputs of the rule by their negative number: ``w10`` where one is the weight of a convolution, else ``x7``."""
    used = dict.fromkeys(each.opId for operator in operators for each in operator.input if each.opId < 0)
    weights = {each.opId for operator in operators if operator.type == _CONV for each in operator.input[1:]}
    return {made: f"{'w' if made in weights else 'x'}{-made}" for made in used}


class _Side:
    """One side of a rule: its ops, and the conditions that make tensors what the file takes them for."""

    def __init__(
        self, prefix: str, inputs: Mapping[int, str], operators: Sequence[Message], ranked: frozenset[str]
    ) -> None:
        self.ops: list[PatternOp] = []
        self.conditions: list[str] = []
        self.ranked = ranked  # tensors whose number of dimensions is known
        self._is_source = prefix == "s"
        self._inputs = inputs
        self._outputs: list[tuple[str, ...]] = []  # of each operator, after its activation
        self._maker: dict[str, PatternOp] = {}
        for index, operator in enumerate(operators):
            self._outputs.append(self._add(operator, f"{prefix}{index}"))

    def tensor(self, made: int, output: int) -> str:
        """The name of an operator's output, or of an input of the rule."""
        if made in self._inputs:
            return self._inputs[made]
        if not 0 <= made < len(self._outputs) or not 0 <= output < len(self._outputs[made]):
            raise _DamagedError(f"output {output} of operator {made} is read, which nothing before it makes")
        return self._outputs[made][output]

    def _add(self, operator: Message, name: str) -> tuple[str, ...]:
        operands = tuple(self.tensor(each.opId, each.tsId) for each in operator.input)
        count = _parameter(operator, _OUTPUTS) if operator.type == _SPLIT else 1
        if not 1 <= count <= _MOST_OUTPUTS or len(operands) < (2 if operator.type in (_CONV, _CONCAT) else 1):
            raise _DamagedError(f"operator {name} has {len(operands)} inputs and {count} outputs")
        outputs = (name,) if count == 1 else tuple(f"{name}_{output}" for output in range(count))
        activation = _parameters(operator).get(_ACTIVATION, _NO_ACTIVATION)
        before = outputs if activation == _NO_ACTIVATION else (f"{name}_linear",)
        if operator.type in _PLAIN:
            self._append(_PLAIN[operator.type], operands, before)
            if operator.type == _MATMUL:
                self._need_rank(2, operands, before)
        elif operator.type == _CONV:
            self._append("conv", operands[:2], before, **self._conv_attributes(operator, *operands[:2]))
            self.ranked |= {*operands[:2], *before}
        elif operator.type == _CONCAT:
            self._append("concat", operands, before, axis=str(_parameter(operator, _AXIS)))
            self._need_rank(_parameter(operator, _RANK), operands, before)
        elif operator.type == _SPLIT:
            axis = _parameter(operator, _AXIS)
            sizes = "sizes" if self._is_source else self._sizes(operands[0], axis)
            self._append("split", operands, before, axis=str(axis), sizes=sizes)
        else:
            raise _DamagedError(f"operator {name} is of type {operator.type}, which no published rule has")
        if activation == _WITH_RELU:
            self._append("relu", before, outputs)
        elif activation != _NO_ACTIVATION:
            raise _DamagedError(f"operator {name} has the activation {activation}, which no published rule has")
        return outputs

    def _append(self, kind: str, inputs: tuple[str, ...], outputs: tuple[str, ...], **attributes: str) -> None:
        given = tuple((name, parse_expression(value)) for name, value in attributes.items())
        self.ops.append(PatternOp(kind, inputs, outputs, given))
        self._maker |= dict.fromkeys(outputs, self.ops[-1])
        if set(inputs) <= self.ranked:
            self.ranked |= set(outputs)

    def _conv_attributes(self, operator: Message, x: str, weight: str) -> dict[str, str]:
        kernel, strides = (tuple(_parameter(operator, key) for key in keys) for keys in (_KERNEL, _STRIDES))
        mode = _parameter(operator, _PAD)
        if mode == _VALID:
            pads = (0, 0)
        elif mode == _SAME and strides == (1, 1) and all(size % 2 for size in kernel):
            pads = (kernel[0] // 2, kernel[1] // 2)
        else:
            raise _DamagedError(f"a convolution has kernel {kernel}, strides {strides} and padding mode {mode}")
        self._need(f"{weight}.shape[2:] == {kernel}", (weight,))
        variables = sum(op.kind == "conv" for op in self.ops)
        groups = f"g{variables}" if self._is_source else f"{x}.shape[1] // {weight}.shape[1]"
        return {"strides": str(strides), "pads": str(pads * 2), "groups": groups}

    def _need_rank(self, rank: int, operands: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        for operand in operands:
            if operand not in self.ranked:
                self._need(f"len({operand}.shape) == {rank}", (operand,))
        self.ranked |= {*operands, *outputs}

    def _need(self, condition: str, tensors: tuple[str, ...]) -> None:
        """Add a condition if it is on the source or the inputs; those on what a target makes follow from these."""
        if self._is_source or set(tensors) <= set(self._inputs.values()):
            self.conditions.append(condition)

    def _sizes(self, tensor: str, axis: int) -> str:
        """Sizes along an axis of the pieces of a concat, traced back through ops that keep the pieces apart."""
        op = self._maker.get(tensor)
        if op is not None and op.kind == "concat" and dict(op.attributes)["axis"] == Literal(axis):
            return f"({', '.join(f'{operand}.shape[{axis}]' for operand in op.inputs)},)"
        if op is not None and op.kind in ("relu", "add", "mul", "concat"):
            return self._sizes(op.inputs[0], axis)
        if op is not None and op.kind in ("conv", "matmul") and axis in (0, 1):
            # Rows, or images, are those of the first operand; columns are those of the second, channels its filters.
            return self._sizes(op.inputs[axis], 0 if op.kind == "conv" else axis)
        raise _DamagedError(f"a split of {tensor} along axis {axis} undoes no concat")


#: Sets that ``default`` stands for.
DEFAULT_RULES = "metaflow,simplify"
_FOLDER = "iossim.transforms.rewriting.rules"
_REMEDY = "give a .yaml file of rules, a .pb file of TASO's, or the name of a set (see 'iossim rules list')"


@cache
def _own(name: str) -> tuple[Rule, ...] | None:
    if name not in shipped_files(_FOLDER):
        return None
    entry = resources.files(_FOLDER) / f"{name}.yaml"
    return read_rules(entry.read_text(encoding="utf-8"), entry.name)


def _of_plugin(added: Plugin, found: Callable[[], object]) -> tuple[Rule, ...]:
    text = added.guarded(found)()
    if not isinstance(text, str):
        raise added.error(f"returns {type(text).__name__}, not YAML")
    return read_rules(text, f"of {added}")


#: Sets of rules by name; entry points are functions that return YAML text.
RULE_SETS: Group[tuple[Rule, ...]] = Group(
    "unknown rules {!r}",
    lambda: shipped_files(_FOLDER),
    _own,
    Extension("iossim.rules", "a function that returns rules as YAML", _of_plugin),
    RuleError,
)


def rule_set(name_or_path: str) -> tuple[Rule, ...]:
    """The rules of a set that ships or is a plugin's, by name, or of a file: ``.yaml``, or ``.pb`` as TASO publishes
    them. Raises RuleError for an unknown name, and for a file that cannot be read, naming line, rule and field.
    """
    path = Path(name_or_path)
    if path.suffix == ".pb":
        try:
            data = path.read_bytes()
        except OSError as problem:
            raise RuleError(f"cannot read rules {path}: {problem.strerror}; {_REMEDY}") from None
        return read_published(data, str(path))
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return read_rules(read_text(path, "rules", _REMEDY, RuleError), str(path))
    found = RULE_SETS.get(name_or_path)
    if found is None:
        raise RuleError(f"{RULE_SETS.refusal(name_or_path, RULE_SETS.names())}; or give a .yaml or .pb file")
    return found


def rules_named(names: str) -> tuple[Rule, ...]:
    """The rules of several sets or files, separated by commas, ``default`` among them; raises RuleError."""
    sets = (DEFAULT_RULES if name == "default" else name for name in names.split(","))
    return tuple(rule for several in sets for name in several.split(",") for rule in rule_set(name))


def origin(name: str) -> str:
    """Origin of the set of that name: ``shipped``, or the package of a plugin."""
    added = RULE_SETS.plugins().get(name)
    return "shipped" if added is None or name in shipped_files(_FOLDER) else added.package
