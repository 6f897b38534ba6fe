"""The parameters of a pipeline's `__call__`, read from the source text of diffusers, which is never imported for it.

Importing diffusers loads torch, and the process that serves clients has none.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REQUIRED: Final = object()
"""Default of a parameter that has none."""
COMPUTED: Final = object()
"""Default of a parameter whose default is an expression."""


@dataclass(frozen=True, slots=True)
class CallSignature:
    """What a class's `__call__` takes: name -> default, a plain value or REQUIRED or COMPUTED."""

    class_name: str
    parameters: Mapping[str, object]
    draws_from_text: bool
    """Does diffusers itself list the class for making pictures from text?"""


def read_call_signature(class_name: str) -> CallSignature | None:
    """The signature of a pipeline class of diffusers; None when it has no such class that can be called."""
    folder = _pipelines_folder()
    if folder is None:
        return None
    parameters = _parameters_of(class_name, _sources(folder), depth=0)
    if parameters is None:
        return None
    return CallSignature(class_name, parameters, class_name in _text_to_image_classes(folder))


def _pipelines_folder() -> Path | None:
    spec = importlib.util.find_spec("diffusers")
    return Path(spec.origin).parent / "pipelines" if spec and spec.origin else None


def _sources(folder: Path) -> list[str]:
    return [path.read_text() for path in sorted(folder.rglob("pipeline_*.py"))]


def _parameters_of(class_name: str, sources: list[str], depth: int) -> Mapping[str, object] | None:
    header = re.compile(rf"^class {re.escape(class_name)}\b", re.MULTILINE)
    for source in sources:
        if not header.search(source):
            continue
        body = ast.parse(source).body
        node = next(n for n in body if isinstance(n, ast.ClassDef) and n.name == class_name)
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and member.name == "__call__":
                return _parameters(member.args)
        for base in node.bases:
            inherited = _parameters_of(ast.unparse(base), sources, depth + 1) if depth < 3 else None
            if inherited is not None:
                return inherited
    return None


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


def _text_to_image_classes(folder: Path) -> frozenset[str]:
    source = (folder / "auto_pipeline.py").read_text()
    table = re.search(r"^AUTO_TEXT2IMAGE_PIPELINES_MAPPING = OrderedDict\((.*?)^\)", source, re.S | re.M)
    return frozenset(re.findall(r"\(\"[\w-]+\", (\w+)\)", table[1])) if table else frozenset()
