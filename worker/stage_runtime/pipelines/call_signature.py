"""What a pipeline takes, read from the source text of diffusers, which is never imported for it.

Importing diffusers loads torch, and the process that serves clients has none.
"""

from __future__ import annotations

import ast
import importlib.util
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

REQUIRED: Final = object()
"""Default of a parameter that has none."""
COMPUTED: Final = object()
"""Default of a parameter whose default is an expression."""


class SizeTerm(NamedTuple):
    """A number by which a class divides sizes: `times`, times what the VAE shrinks by, times a patch, as it says."""

    times: int
    scaled: bool
    patched: bool


@dataclass(frozen=True, slots=True)
class CallSignature:
    """What a class's `__call__` takes: name -> default, a plain value or REQUIRED or COMPUTED."""

    class_name: str
    parameters: Mapping[str, object]
    size_terms: frozenset[SizeTerm] = frozenset()
    """What the class divides height and width by."""
    sizes: tuple[tuple[int, int], ...] = ()
    """(width, height) of each size that the class makes, where it knows only some; it turns others into these."""


def read_call_signature(class_name: str) -> CallSignature | None:
    """The signature of a pipeline class of diffusers; None when it has no such class that can be called."""
    folder = _pipelines_folder()
    if folder is None:
        return None
    sources = _sources(folder)
    parameters = _parameters_of(class_name, sources, depth=0)
    if parameters is None:
        return None
    terms = frozenset(_size_terms(class_name, sources))
    return CallSignature(class_name, parameters, terms, _sizes(class_name, sources))


def _pipelines_folder() -> Path | None:
    spec = importlib.util.find_spec("diffusers")
    return Path(spec.origin).parent / "pipelines" if spec and spec.origin else None


def _sources(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.rglob("pipeline_*.py"))]


def _class_node(class_name: str, sources: list[str]) -> ast.ClassDef | None:
    header = re.compile(rf"^class {re.escape(class_name)}\b", re.MULTILINE)
    source = next((source for source in sources if header.search(source)), None)
    if source is None:
        return None
    named = (n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == class_name)
    return next(named, None)


def _parameters_of(class_name: str, sources: list[str], depth: int) -> Mapping[str, object] | None:
    node = _class_node(class_name, sources)
    if node is None:
        return None
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__call__":
            return _parameters(member.args)
    for base in node.bases:
        inherited = _parameters_of(ast.unparse(base), sources, depth + 1) if depth < 3 else None
        if inherited is not None:
            return inherited
    return None


def _size_terms(class_name: str, sources: list[str]) -> Iterator[SizeTerm]:
    """From `height % N`, and from the factor that the class gives its processor of pictures."""
    node = _class_node(class_name, sources)
    for part in ast.walk(node) if node is not None else ():
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
            divided = part.right if ast.unparse(part.left) in ("height", "width") else None
        else:
            divided = part.value if isinstance(part, ast.keyword) and part.arg == "vae_scale_factor" else None
        if divided is not None:
            text = ast.unparse(divided)
            numbers = [
                n.value for n in ast.walk(divided) if isinstance(n, ast.Constant) and type(n.value) is int
            ]
            if isinstance(divided, ast.Constant) or "scale" in text:
                yield SizeTerm(math.prod(numbers), "scale" in text, "patch" in text)


def _sizes(class_name: str, sources: list[str]) -> tuple[tuple[int, int], ...]:
    """From `(width, height) not in self.NAME` and the list that the class gives that name."""
    node = _class_node(class_name, sources)
    parts = list(ast.walk(node)) if node is not None else []
    names = {
        ast.unparse(part.comparators[0])
        for part in parts
        if isinstance(part, ast.Compare) and ast.unparse(part.left) == "(width, height)"
    }
    for part in parts:
        if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) in names:
            said = _value(part.value)
            return tuple(said) if isinstance(said, list) else ()
    return ()


def _parameters(arguments: ast.arguments) -> dict[str, object]:
    positional = [*arguments.posonlyargs, *arguments.args]
    unset = [None] * (len(positional) - len(arguments.defaults))
    pairs = list(zip(positional, [*unset, *arguments.defaults], strict=True))[1:]
    pairs += zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {argument.arg: REQUIRED if default is None else _value(default) for argument, default in pairs}


def _value(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return COMPUTED
