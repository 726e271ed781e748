"""Reads YAML that people write, and remembers the line of each value, so that errors name it.

Files cannot nest deeply, repeat themselves by aliases, give a key twice, or make anything but plain values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import yaml

#: A value's path: keys of mappings and indices of items, from the whole document inwards.
Location = tuple[str | int, ...]

_MAX_DEPTH = 20
_MAX_CHARACTERS = 1 << 20


class LocatedYamlError(Exception):
    """An error in a file: its line (from 1), the field or ``()``, the reason with the remedy."""

    def __init__(self, line: int, location: Location, reason: str) -> None:
        super().__init__(reason)
        self.line = line
        self.location = location
        self.reason = reason


@dataclass(frozen=True)
class LocatedYaml:
    """The values of a document, and the line of each by its path: for a key's value the line of the key."""

    values: object
    lines: Mapping[Location, int]

    def nearest(self, location: Location) -> Location:
        """The innermost existing value on the way to ``location``."""
        while location not in self.lines:
            location = location[:-1]
        return location


class _Loader(yaml.SafeLoader):
    """Plain values, in pure Python, whose error messages are the better ones."""


class _QuickLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same values by LibYAML, eight times as fast. Its nodes overflow the stack on deep nesting."""


class Dumper(yaml.SafeDumper):
    """Writes values so that :func:`read_located` reads the same: text that looks like a number is quoted."""


for _each in (_Loader, _QuickLoader, Dumper):
    # ``1e3`` is a number, for people and in YAML 1.2.
    _each.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


def read_located(text: str) -> LocatedYaml:
    """The values of a YAML document with their lines; raises LocatedYamlError. An empty document is None."""
    found = _read(text, lambda loader: [loader.get_single_node()])[0]
    return LocatedYaml(found.values, {**found.lines, (): 1})


def read_located_documents(text: str) -> list[LocatedYaml]:
    """The documents of a file, separated by ``---``, with lines of the file; raises LocatedYamlError.

    The first line of a document is that of its ``()``. An empty document is left out.
    """
    found = _read(text, lambda loader: list(iter(lambda: loader.get_node() if loader.check_node() else None, None)))
    return [document for document in found if document.values is not None]


def _read(text: str, compose: Callable[[_Loader], list[yaml.Node | None]]) -> list[LocatedYaml]:
    if len(text) > _MAX_CHARACTERS:
        raise LocatedYamlError(1, (), f"has {len(text):,} characters; at most {_MAX_CHARACTERS:,} are read")
    try:
        try:
            return _read_by(_QuickLoader, text, compose)
        except yaml.YAMLError:
            return _read_by(_Loader, text, compose)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        told = ", ".join(filter(None, (error.context, error.problem)))
        raise LocatedYamlError(mark.line + 1 if mark else 1, (), f"is not YAML: {told}; correct the line") from None
    except yaml.YAMLError as error:  # a character that is not allowed in YAML
        position = getattr(error, "position", 0)
        line = text.count("\n", 0, position) + 1 if isinstance(position, int) else 1
        reason = str(error).splitlines()[0]
        raise LocatedYamlError(line, (), f"is not YAML: {reason}; correct the line") from None


def _read_by(kind: type[_Loader], text: str, compose: Callable[[_Loader], list[yaml.Node | None]]) -> list[LocatedYaml]:
    _refuse_depth_and_aliases(kind, text)
    loader = kind(text)
    try:
        return [_document(loader, node) for node in compose(loader)]
    finally:
        loader.dispose()


def _document(loader: _Loader, node: yaml.Node | None) -> LocatedYaml:
    if node is None:
        return LocatedYaml(None, {(): 1})
    lines: dict[Location, int] = {(): node.start_mark.line + 1}
    return LocatedYaml(_value(loader, node, (), lines), lines)


def _refuse_depth_and_aliases(kind: type[_Loader], text: str) -> None:
    depth = 0
    for event in yaml.parse(text, kind):
        line = event.start_mark.line + 1 if event.start_mark else 1
        anchor = getattr(event, "anchor", None)
        if anchor is not None:
            sign = "*" if isinstance(event, yaml.AliasEvent) else "&"
            raise LocatedYamlError(line, (), f"anchors and aliases ({sign}{anchor}) are not read; write the value out")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MAX_DEPTH:
            raise LocatedYamlError(line, (), f"lists and mappings are nested more than {_MAX_DEPTH} deep; close one")


def _value(loader: yaml.SafeLoader, node: yaml.Node, location: Location, lines: dict[Location, int]) -> object:
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            lines[(*location, index)] = item.start_mark.line + 1
            items.append(_value(loader, item, (*location, index), lines))
        return items
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, object] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise LocatedYamlError(line, location, "a key is a list or a mapping; write a name")
            # The key as written: ``on`` or ``8`` is a name here, never a truth value or a number.
            key = key_node.value
            if key in mapping:
                raise LocatedYamlError(
                    line, (*location, key), f"is given twice, first in line {lines[(*location, key)]}; leave one out"
                )
            lines[(*location, key)] = line
            mapping[key] = _value(loader, value_node, (*location, key), lines)
        return mapping
    try:
        return loader.construct_object(node)
    except (ValueError, OverflowError, LookupError, AttributeError):
        # Examples: a date with 13 months, an integer of a million digits, a wrong tag.
        raise LocatedYamlError(
            node.start_mark.line + 1, location, f"{node.value[:40]!r} cannot be read; put text into quotes"
        ) from None
