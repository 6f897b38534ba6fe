"""From plain JSON values to a model of the contract, with every fault at once.

pydantic finds the faults; this module says them in the words of the schema, and adds the laws
that pydantic did not get to because something else was wrong beside them.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from stage_api import schema
from stage_api.base import LAW_BROKEN, Contract
from stage_api.errors import Fault, SpecError, join, show

M = TypeVar("M", bound=Contract)

_YAML_BOOL: Final = " (YAML reads yes, no, on and off as booleans: quote them)"


def decode(model: type[M], value: object) -> M:
    """The model that a plain value (what JSON can hold) describes.

    Raises: SpecError with all faults; paths start at the top of `value`.
    """
    try:
        return model.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        found = [fault for detail in _details(error) for fault in _faults_of(detail, model)]
    laws = _unreached_laws(model, value)
    raise SpecError(dict.fromkeys((*found, *laws))) from None


def _details(error: ValidationError) -> list[ErrorDetails]:
    try:
        return error.errors()
    except UnicodeEncodeError:
        raise SpecError(
            [Fault("", "names of fields in Unicode", "one with half of a surrogate pair")]
        ) from None


def path_of(loc: tuple[int | str, ...]) -> str:
    """A pydantic location as a path: ("warmup", 0, "width") is `warmup[0].width`."""
    path = ""
    for step in loc:
        path = join(path, f"[{step}]" if isinstance(step, int) else step)
    return path


def _faults_of(detail: ErrorDetails, model: type[Contract]) -> Iterator[Fault]:
    loc, kind = detail["loc"], detail["type"]
    path = path_of(loc)
    if kind == LAW_BROKEN:
        yield from (fault.under(path) for fault in detail["ctx"]["faults"])
        return
    root = schema.structural(model)
    if kind == "extra_forbidden":
        known = (schema.at(root, loc[:-1]) or {}).get("properties", {})
        yield Fault(path, _one_of_fields(str(loc[-1]), known), "an unknown field")
        return
    expected = schema.phrase(schema.at(root, loc) or {})
    if kind == "missing":
        yield Fault(path, expected, "nothing")
        return
    yield Fault(path, expected, _got(kind, detail["input"]))


def _got(kind: str, value: Any) -> str:
    if kind == "too_long":
        return f"{len(value)} entries"
    if kind == "string_too_long":
        return f"{len(value)} characters"
    return show(value) + (_YAML_BOOL if isinstance(value, bool) else "")


def _one_of_fields(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"a known field (did you mean {close[0]}?)"
    return "one of the fields " + ", ".join(known)


def _unreached_laws(model: type[Contract], value: object, at: str = "") -> Iterator[Fault]:
    """Broken laws whose own fields are sound, though the model that carries them isn't."""
    if not isinstance(value, Mapping):
        return
    for law in model.laws:
        try:
            read = [_field(model, name, value) for name in law.reads]
        except ValidationError:
            continue
        if fault := law.check(*read):
            yield fault.under(at)
    for field in model.model_fields.values():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Contract) and field.alias is not None:
            yield from _unreached_laws(inner, value.get(field.alias), join(at, field.alias))


def _field(model: type[Contract], name: str, value: Mapping[str, Any]) -> Any:
    """One field of a model by itself, or its default.

    Raises: ValidationError if the field is wrong, or missing and required.
    """
    field = model.model_fields[name]
    given = value.get(field.alias or name)
    if given is None and not field.is_required():
        return field.get_default(call_default_factory=True)
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, Contract):
        return kind.model_validate(given, by_alias=True, by_name=False)
    hint: Any = Annotated[(kind, *field.metadata)] if field.metadata else kind
    adapter: TypeAdapter[Any] = TypeAdapter(hint, config=ConfigDict(strict=True))
    return adapter.validate_python(given, by_alias=True, by_name=False)
