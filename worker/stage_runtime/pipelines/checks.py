"""Checks of one value each: the value comes back as it may be used, or Refused says what was expected.

A number is never a bool and never a text, a whole number never a float. No message repeats a client's text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from stage_runtime.core.request import Value
from stage_runtime.pipelines.contract import Limits, Option

P = ParamSpec("P")
T = TypeVar("T")


class Refused(Exception):
    """One value can't be taken. Turned into the error of whoever gave it: a client or a stage's spec."""

    def __init__(self, field: str, expected: str, got: str) -> None:
        super().__init__(field)
        self.field = field
        self.expected = expected
        self.got = got


def optional(
    check: Callable[Concatenate[str, object, P], T],
    field: str,
    value: object,
    *args: P.args,
    **kwargs: P.kwargs,
) -> T | None:
    """None as it is, anything else checked."""
    return None if value is None else check(field, value, *args, **kwargs)


def whole(field: str, value: object, least: int, most: int) -> int:
    """A whole number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(field, f"a whole number {least}..{most}" if least < most else str(most), _kind(value))
    if not least <= value <= most:
        raise Refused(field, f"{least}..{most}" if least < most else str(most), shown(value))
    return value


def number(field: str, value: object, least: float, most: float) -> float:
    """A finite number within bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused(field, f"a number {least:g}..{most:g}", _kind(value))
    if not least <= value <= most:  # nor is NaN, and no whole number is too long to compare
        raise Refused(field, f"{least:g}..{most:g}", shown(value))
    return float(value)


def text(field: str, value: object, most_chars: int) -> str:
    """A text that tokenizers and UTF-8 can take, not too long. An empty one is fine."""
    if not isinstance(value, str):
        raise Refused(field, "a text", _kind(value))
    if len(value) > most_chars:
        raise Refused(field, f"at most {most_chars} characters", f"{len(value)} characters")
    if "\x00" in value:
        raise Refused(field, "a text without NUL characters", "one with")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise Refused(field, "valid Unicode", "a text with lone surrogates")
    return value


def side(field: str, value: object, limits: Limits) -> int:
    """A width or height in pixels."""
    step = limits.size_multiple
    most = limits.max_side - limits.max_side % step
    expected = f"a multiple of {step} from {step} to {most}" if step < most else str(most)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused(field, expected, _kind(value))
    if value % step or not step <= value <= most:
        below, above = value - value % step, value - value % step + step
        nearest = sorted({min(max(size, step), most) for size in (below, above)})
        hint = f" (nearest: {' or '.join(map(str, nearest))})" if step < most else ""
        raise Refused(field, expected + hint, shown(value))
    return value


def size(field: str, width: object, height: object, limits: Limits) -> None:
    """A pair of sides that the model makes, where it makes only some."""
    if limits.sizes and None not in (width, height) and (width, height) not in limits.sizes:
        known = ", ".join(f"{one}x{other}" for one, other in limits.sizes)
        raise Refused(field, f"a size of {known}", f"{width}x{height}")


def frames(field: str, value: object, limits: Limits) -> int:
    """A number of frames."""
    count = whole(field, value, 1, limits.max_frames)
    if excess := (count - 1) % limits.frame_step:
        nearest = [n for n in (count - excess, count - excess + limits.frame_step) if n <= limits.max_frames]
        expected = f"1 more than a multiple of {limits.frame_step}"
        raise Refused(field, f"{expected} (nearest: {' or '.join(map(str, nearest))})", str(count))
    return count


def seconds(field: str, value: object, limits: Limits) -> float:
    """A length of audio, above zero."""
    length = number(field, value, 0.0, limits.max_seconds)
    if not length:
        raise Refused(field, f"more than 0 and at most {limits.max_seconds:g}", "0")
    return length


def option(field: str, value: object, allowed: Option) -> Value:
    """An argument that only some pipelines have, by its own kind and bounds."""
    if allowed.kind is str:
        return text(field, value, int(allowed.most))
    if allowed.kind is bool:
        if not isinstance(value, bool):
            raise Refused(field, "true or false", _kind(value))
        return value
    if allowed.kind is int:
        return whole(field, value, int(allowed.least), int(allowed.most))
    return number(field, value, allowed.least, allowed.most)


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def shown(value: float) -> str:
    """A number as a message may show it: not even one of ten thousand digits makes it long."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of about {int(value.bit_length() * 0.301)} digits"
    return str(value)
