"""Stages from what people write and from what the API server says, or every fault at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from stage_api import names, yaml_text
from stage_api.decode import decode
from stage_api.errors import Fault, SpecError, join, show
from stage_api.execution import unsupported_in
from stage_api.spec import DiffusionStageSpec
from stage_api.stage import DiffusionStage

MAX_DEPTH: Final = yaml_text.MAX_DEPTH


def load_manifest(path: str | Path, *, executable: bool = False) -> tuple[DiffusionStage, ...]:
    """The stages in a file. Raises: SpecError, as `parse_manifest`, or if it can't be read."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(yaml_text.MAX_CHARS + 1)
    except OSError as error:
        raise SpecError([Fault(str(path), "a readable file", error.strerror or "an error")]) from error
    return parse_manifest(data, executable=executable)


def parse_manifest(text: str | bytes, *, executable: bool = False) -> tuple[DiffusionStage, ...]:
    """Every DiffusionStage in a YAML or JSON text of one or more documents, in order.

    Documents of other API groups are passed over, so that a stage may stand beside its Namespace.
    `executable`: what this version can't execute is a fault too.

    Raises: SpecError with the faults of all documents; where there are several, paths say which.
    """
    docs = yaml_text.documents(text)
    stages: list[DiffusionStage] = []
    faults: list[Fault] = []
    for number, doc in enumerate(docs, start=1):
        made, wrong = _stages_of(doc, executable)
        stages += made
        where = f"document {number}: " if len(docs) > 1 else ""
        faults += (Fault(where + fault.path, fault.expected, fault.got) for fault in wrong)
    faults += _name_clashes(stages)
    if not stages and not faults:
        faults = [Fault("", f"a {names.KIND} of {names.API_VERSION}", "none")]
    if faults:
        raise SpecError(faults)
    return tuple(stages)


def parse_stage(value: object, *, executable: bool = False) -> DiffusionStage:
    """The stage that one object (a mapping as JSON has it) describes.

    `executable`: what this version can't execute is a fault too. Raises: SpecError with every fault.
    """
    stage = plain(value)
    spec = stage.get("spec") if isinstance(stage, dict) else None
    refused = unsupported_in(DiffusionStageSpec, spec) if executable else ()
    try:
        made = decode(DiffusionStage, stage)
    except SpecError as error:
        raise SpecError((*error.faults, *refused)) from None
    if refused:
        raise SpecError(refused)
    return made


def plain(value: object, path: str = "", depth: int = 0) -> Any:
    """A value as JSON has it: dicts, lists and scalars; whole floats are integers.

    Raises: SpecError if it is too deep or holds something that JSON can't.
    """
    if depth > MAX_DEPTH:
        raise SpecError([Fault(path, f"at most {MAX_DEPTH} levels of nesting", "more")])
    if isinstance(value, Mapping):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise SpecError([Fault(path, "keys that are text", show(odd[0]))])
        return {key: plain(item, join(path, key), depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [plain(item, join(path, f"[{i}]"), depth + 1) for i, item in enumerate(value)]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise SpecError([Fault(path, "a JSON value", f"a {type(value).__name__}")])


def _stages_of(doc: yaml_text.Document, executable: bool) -> tuple[list[DiffusionStage], list[Fault]]:
    """The sound stages of one document, and all its faults if it means to hold stages."""
    stages: list[DiffusionStage] = []
    ours = [value for value in _objects(doc.value) if _is_ours(value)]
    faults = list(doc.faults) if ours else []
    for value in ours:
        try:
            stages.append(parse_stage(value, executable=executable))
        except SpecError as error:
            faults += error.faults
    return stages, list(dict.fromkeys(faults))


def _objects(doc: object) -> Iterator[object]:
    """The objects of a document: its items if it is a List, as `kubectl get -o yaml` writes it."""
    if isinstance(doc, Mapping) and doc.get("kind") == "List" and isinstance(doc.get("items"), list):
        yield from doc["items"]
    else:
        yield doc


def _is_ours(value: object) -> bool:
    """Whether a document means to be a stage: by its kind or by its API group.

    What has neither apiVersion nor kind is no Kubernetes object, and is judged as a stage too.
    """
    if not isinstance(value, Mapping):
        return True
    kind, version = value.get("kind"), value.get("apiVersion")
    return kind in (None, names.KIND) or version is None or str(version).split("/")[0] == names.GROUP


def _name_clashes(stages: Sequence[DiffusionStage]) -> Iterator[Fault]:
    seen: set[tuple[str, str]] = set()
    for stage in stages:
        key = (stage.metadata.namespace, stage.metadata.name)
        if key in seen:
            yield Fault("metadata.name", "each stage once", show("/".join(key)))
        seen.add(key)
