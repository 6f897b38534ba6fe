"""YAML as kubectl reads it: documents of plain JSON values, or faults.

PyYAML composes the nodes; what they mean is decided here, because its own loader keeps the last
of two equal keys, makes dates of strings, sixties of clock times, strings of 1e3, and follows
anchors without end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import yaml

from stage_api.errors import Fault, SpecError, join

MAX_CHARS: Final = 1 << 20  # the API server takes no larger object
MAX_DEPTH: Final = 64
MAX_NODES: Final = 100_000  # counted after anchors are followed
DUPLICATE: Final = "each key once"

_PLAIN: Final = "plain"  # our tag of an unquoted scalar, whose text says what it is
_STR: Final = "tag:yaml.org,2002:str"
_BY_TEXT: Final = frozenset(
    {_PLAIN, *(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool", "null"))}
)

# libyaml's parser where it was built in: far faster, same events.
_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BASE):  # type: ignore[misc]
    """Composes nodes without deciding what unquoted scalars are."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _STR
        return str(super().resolve(kind, value, implicit))


_NULL: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE: Final = frozenset(["true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", "y", "Y"])
_FALSE: Final = frozenset(["false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "n", "N"])
_INT: Final = re.compile(r"[-+]?(0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|0|[1-9][0-9_]*)")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclass(frozen=True, slots=True)
class Document:
    """One document: its value, and what is wrong with its text though it has one."""

    value: Any
    faults: tuple[Fault, ...]


def documents(text: str | bytes) -> tuple[Document, ...]:
    """The documents of a YAML or JSON text; empty ones are left out.

    Of two equal keys the value has the last, and a value that is no JSON is None; each is a fault.

    Raises: SpecError if the text is no YAML, too large or too deep.
    """
    source = _decoded(text)
    try:
        _check_depth(source)
        nodes = [node for node in yaml.compose_all(source, Loader=_Loader) if node is not None]
    except (yaml.YAMLError, UnicodeError) as error:
        raise SpecError([Fault("", "YAML", _why(error))]) from error
    found = (_Reader().document(node) for node in nodes)
    return tuple(doc for doc in found if doc.value is not None or doc.faults)


def _decoded(text: str | bytes) -> str:
    if len(text) > MAX_CHARS:
        raise SpecError([Fault("", f"at most {MAX_CHARS} characters", str(len(text)))])
    if isinstance(text, str):
        return text
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError([Fault("", "UTF-8 text", f"byte {error.start} that isn't")]) from error


def _check_depth(source: str) -> None:
    """Refuse deep nesting from the flat stream of events: the composer recurses."""
    depth = 0
    for event in yaml.parse(source, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                where = f"more at line {event.start_mark.line + 1}"
                raise SpecError([Fault("", f"at most {MAX_DEPTH} levels of nesting", where)])
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _why(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return " ".join(f"text that isn't{where} ({problem})".split())


class _Reader:
    """Turns the nodes of one document into values, and notes what is wrong."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._nodes = 0

    def document(self, node: yaml.Node) -> Document:
        value = self._value(node, "", 0)
        return Document(value, tuple(dict.fromkeys(self._faults)))

    def _value(self, node: yaml.Node, path: str, depth: int) -> Any:
        self._nodes += 1
        if self._nodes > MAX_NODES or depth > MAX_DEPTH:
            size = f"at most {MAX_NODES} values and {MAX_DEPTH} levels, anchors followed"
            raise SpecError([Fault("", size, "more")])
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, join(path, f"[{i}]"), depth + 1) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: str, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._faults.append(Fault(path, "keys that are text", "a list or mapping as a key"))
                continue
            key = key_node.value
            if key == "<<" and key_node.tag == _PLAIN:
                for part in self._merged(value_node, path, depth):
                    merged = {**part, **merged}
                continue
            if key in made:
                line = key_node.start_mark.line + 1
                self._faults.append(Fault(join(path, key), DUPLICATE, f"it again at line {line}"))
            made[key] = self._value(value_node, join(path, key), depth + 1)
        return {**merged, **made}

    def _merged(self, node: yaml.Node, path: str, depth: int) -> Iterator[dict[str, Any]]:
        """The mappings that a `<<` brings in; the earlier wins."""
        for item in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            if isinstance(item, yaml.MappingNode):
                yield self._mapping(item, path, depth + 1)
            else:
                self._faults.append(Fault(join(path, "<<"), "a mapping to merge", "something else"))

    def _scalar(self, node: yaml.ScalarNode, path: str) -> str | int | float | bool | None:
        if node.tag == _STR:
            return str(node.value)
        if node.tag in _BY_TEXT:
            return self._plain(node.value, path)
        self._faults.append(Fault(path, "a plain value", f"the tag {node.tag}"))
        return None

    def _plain(self, text: str, path: str) -> str | int | float | bool | None:
        if text in _NULL:
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        if _NOT_FINITE.fullmatch(text):
            self._faults.append(Fault(path, "a finite number", text))
            return None
        if _INT.fullmatch(text):
            return _integer(text)
        if _FLOAT.fullmatch(bare := text.replace("_", "")):
            return _number(bare)
        return text


def _integer(text: str) -> int | str:
    digits = text.replace("_", "").replace("0o", "0")
    bare = digits.lstrip("+-")
    base = {"0b": 2, "0x": 16}.get(bare[:2], 8 if len(bare) > 1 and bare.startswith("0") else 10)
    try:
        return int(digits, base)
    except ValueError:  # thousands of digits, or none at all: no number that any field takes
        return text


def _number(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text  # 1e999 is a number to nobody
