"""Rules as YAML that people write: documents separated by ``---``, one rule a document.

    rule: merge-convolutions              # its name: letters, digits, dots, dashes and underscores
    origin: MetaFlow, figure 2            # where it is from
    source:                               # ops of the graph, each before what reads it
      - y1 = conv(x, w1, b1?, strides=s, pads=p, dilations=d, groups=1)
      - y2 = conv(x, w2, b2?, strides=s, pads=p, dilations=d, groups=1)
    filled:                               # constants that the target brings along; may be left out
      - zeros = filled(shape=(w1.shape[0],), value=0.0)
    target:                               # what takes their place; may be left out if inputs replace all outputs
      - w = concat(w1, w2, axis=0)
      - b = concat(b1?, b2?, axis=0)
      - y = conv(x, w, b?, strides=s, pads=p, dilations=d, groups=1)
      - z1, z2 = split(y, axis=1, sizes=(w1.shape[0], w2.shape[0]))
    outputs: {y1: z1, y2: z2}             # tensor of the source: what replaces it
    conditions:                           # all needed; may be left out
      - w1.shape[2:] == w2.shape[2:]

Kinds and attributes are those of :mod:`iossim.ir.ops`; ``docs/detail/rules.md`` says how operands, attributes and
conditions are read. :mod:`iossim.transforms.rewriting.rule` has the meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import yaml

from iossim.base.errors import did_you_mean
from iossim.base.located_yaml import Dumper, LocatedYaml, LocatedYamlError, Location, read_located_documents
from iossim.transforms.rewriting.expression import Expression, ExpressionError, Literal, parse_expression
from iossim.transforms.rewriting.rule import Filled, PatternOp, Rule, RuleError

#: The fields of a rule, in the order in which they are written.
FIELDS = ("rule", "origin", "source", "filled", "target", "outputs", "conditions")
#: Pattern of the names of rules.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CALL = re.compile(r"\s*(?P<made>[^=(]*?)\s*=\s*(?P<kind>[A-Za-z_]\w*)\s*\((?P<arguments>.*)\)\s*", re.DOTALL)
_TENSOR = re.compile(r"[A-Za-z_]\w*")
_OPERAND = re.compile(r"\*?[A-Za-z_]\w*|[A-Za-z_]\w*\?")
_ATTRIBUTE = re.compile(r"([A-Za-z_]\w*)\s*=(?!=)(.*)", re.DOTALL)


class _FieldError(RuleError):
    """An error in one field of a rule, with the remedy."""


def read_rules(text: str, where: str) -> tuple[Rule, ...]:
    """The rules of a file in order. ``where`` names the file in errors. Raises RuleError naming file, line, rule and
    field; also if two rules have the same name, or there is none.
    """
    try:
        documents = read_located_documents(text)
    except LocatedYamlError as fault:
        field = f"{_in_words(fault.location)}: " if fault.location else ""
        raise RuleError(f"rules {where}, line {fault.line}: {field}{fault.reason}") from None
    if not documents:
        raise RuleError(f"rules {where}: holds no rule; begin with 'rule: NAME'")
    rules: dict[str, Rule] = {}
    lines: dict[str, int] = {}
    for document in documents:
        rule = _read_rule(document, where)
        if rule.name in rules:
            raise RuleError(
                f"rules {where}, line {document.lines['rule',]}: rule {rule.name!r}: rule: line {lines[rule.name]} has "
                "the same name; give it another"
            )
        rules[rule.name], lines[rule.name] = rule, document.lines["rule",]
    return tuple(rules.values())


def write_rules(rules: Iterable[Rule]) -> str:
    """The rules as YAML that :func:`read_rules` reads back to the same."""
    return yaml.dump_all(
        map(rule_fields, rules), Dumper=Dumper, explicit_start=True, sort_keys=False, width=1 << 20, allow_unicode=True
    )


def rule_fields(rule: Rule) -> dict[str, object]:
    """A rule as the fields of its document, without those that are empty: plain values, for JSON too."""
    found = {
        "rule": rule.name,
        "origin": rule.origin,
        "source": [str(op) for op in rule.source],
        "filled": [f"{name} = {filled}" for name, filled in rule.filled],
        "target": [str(op) for op in rule.target],
        "outputs": dict(rule.outputs),
        "conditions": [str(condition) for condition in rule.conditions],
    }
    return {name: value for name, value in found.items() if value}


def _read_rule(document: LocatedYaml, where: str) -> Rule:
    values = document.values
    try:
        return _rule_of(values)
    except RuleError as error:
        said, place = str(error), error.place
        if isinstance(error, _FieldError):
            name = values.get("rule") if isinstance(values, dict) else None
            named = f"rule {name!r}: " if isinstance(name, str) else ""
            said = f"{named}{_in_words(place)}: {said}" if place else f"{named}{said}"
        raise RuleError(f"rules {where}, line {document.lines[document.nearest(place)]}: {said}", place) from None


def _rule_of(values: object) -> Rule:
    if not isinstance(values, dict):
        raise _FieldError("is not a mapping of fields; begin with 'rule: NAME'")
    for name in values:
        if name not in FIELDS:
            raise _FieldError(f"a rule has no such field; {did_you_mean(name, FIELDS)}", (name,))
    name, origin = values.get("rule"), values.get("origin", "")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise _FieldError("is not a name; use letters, digits, dots, dashes and underscores", ("rule",))
    if not isinstance(origin, str):
        raise _FieldError("is not text; put it into quotes", ("origin",))
    return Rule(
        name,
        tuple(_parse_op(text, place) for place, text in _texts(values, "source")),
        tuple(_parse_op(text, place) for place, text in _texts(values, "target")),
        tuple(_outputs(values.get("outputs", {}))),
        tuple(_expression(text, place) for place, text in _texts(values, "conditions")),
        tuple(_parse_filled(text, place) for place, text in _texts(values, "filled")),
        origin.strip(),
    )


def _texts(values: Mapping[str, object], field: str) -> Iterator[tuple[Location, str]]:
    items = values.get(field)
    if items is not None and not isinstance(items, list):
        raise _FieldError("is not a list; write each item on a line of its own, after '- '", (field,))
    for index, item in enumerate(items or ()):
        if not isinstance(item, str):
            raise _FieldError(f"{item!r} is not text; put it into quotes", (field, index))
        yield (field, index), item


def _outputs(values: object) -> Iterator[tuple[str, str]]:
    if not isinstance(values, dict):
        raise _FieldError("is not a mapping; write '{tensor of the source: tensor of the target}'", ("outputs",))
    for source, target in values.items():
        if not isinstance(target, str):
            raise _FieldError(f"{target!r} is not a tensor; put the name into quotes", ("outputs", source))
        yield source, target


def _parse_op(text: str, place: Location) -> PatternOp:
    outputs, kind, arguments = _call(text, place)
    operands: list[str] = []
    attributes: dict[str, Expression] = {}
    for argument in arguments:
        if attribute := _ATTRIBUTE.fullmatch(argument):
            name = attribute[1]
            if name in attributes:
                raise _FieldError(f"{text!r} gives {name!r} twice; leave one out", place)
            attributes[name] = _expression(attribute[2], place)
        elif attributes or not _OPERAND.fullmatch(argument):
            raise _FieldError(
                f"{text!r} has {argument!r}; write tensors ('x', 'b?', '*rest') first, then 'attribute=value'", place
            )
        else:
            operands.append(argument)
    return PatternOp(kind, tuple(operands), outputs, tuple(attributes.items()))


def _parse_filled(text: str, place: Location) -> tuple[str, Filled]:
    names, kind, arguments = _call(text, place)
    found = {match[1]: match[2] for match in map(_ATTRIBUTE.fullmatch, arguments) if match}
    both = {"value", "identity"} <= found.keys()
    if len(names) != 1 or kind != "filled" or len(found) != len(arguments) or "shape" not in found or both:
        raise _FieldError(
            f"{text!r} is not 'name = filled(shape=..., value=0.0)', or 'identity=True' for a value", place
        )
    if unknown := found.keys() - {"shape", "value", "identity"}:
        raise _FieldError(f"{text!r} has {min(unknown)!r}; {did_you_mean(min(unknown), Filled.__slots__)}", place)
    value = _literal(found.get("value", "0.0"), place)
    identity = _literal(found.get("identity", "False"), place)
    if isinstance(value, bool | str) or not isinstance(identity, bool):
        raise _FieldError(f"{text!r}: a value is a number, and identity True or False", place)
    return names[0], Filled(_expression(found["shape"], place), float(value), identity)


def _call(text: str, place: Location) -> tuple[tuple[str, ...], str, list[str]]:
    """The names before ``=``, the name before the bracket, and the arguments in it."""
    call = _CALL.fullmatch(text)
    names = tuple(name.strip() for name in call["made"].split(",")) if call else ()
    if call is None or not all(map(_TENSOR.fullmatch, names)):
        raise _FieldError(f"{text!r} is not an op; write 'y = conv(x, w, b?, strides=s)'", place)
    return names, call["kind"], _split_at_commas(call["arguments"], text, place)


def _split_at_commas(arguments: str, text: str, place: Location) -> list[str]:
    """Arguments, split at commas that stand neither in brackets nor in quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in arguments:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "," and not depth:
            parts.append("")
            continue
        else:
            depth += (letter in "([") - (letter in ")]")
        parts[-1] += letter
    if depth or quote:
        raise _FieldError(f"{text!r} has a bracket or quote that is not closed; close it", place)
    stripped = [part.strip() for part in parts]
    return [] if stripped == [""] else stripped


def _expression(text: str, place: Location) -> Expression:
    try:
        return parse_expression(text)
    except ExpressionError as error:
        raise _FieldError(str(error), place) from None


def _literal(text: str, place: Location) -> int | float | bool | str:
    found = _expression(text, place)
    if not isinstance(found, Literal):
        raise _FieldError(f"{text!r} is not a plain value; give a number, True or False", place)
    return found.value


def _in_words(location: Location) -> str:
    """``source[1]``, as Python would find it."""
    first, *rest = location
    return str(first) + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest)
