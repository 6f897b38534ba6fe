"""What a call from Python is given, as the plain values that requests are made of.

Numbers may be numpy's. Whatever else is no plain value is refused by the name that the caller used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from msgspec.structs import replace

from stage_runtime.core.errors import InvalidRequest
from stage_runtime.core.request import Value
from stage_runtime.pipelines.arguments import draw_seed
from stage_runtime.pipelines.checks import shown
from stage_runtime.pipelines.contract import MAX_OUTPUTS, Wishes


def refused(field: str, expected: str, got: str) -> InvalidRequest:
    """The error for one argument."""
    return InvalidRequest(f"{field}: expected {expected}, got {got}", field)


def plain(value: Any) -> Any:
    """A number of numpy's as Python has it, anything else as it is."""
    if type(value) in (bool, int, float, str, type(None)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    kind = type(value)
    return bool(value) if (kind.__module__, kind.__name__.rstrip("_")) == ("numpy", "bool") else value


def plain_arguments(arguments: Mapping[str, object]) -> dict[str, Value]:
    """The pipeline's own arguments. Raises: InvalidRequest for one that is no plain value."""
    found: dict[str, Value] = {}
    for name, given in arguments.items():
        value = plain(given)
        if value is not None and not isinstance(value, str | int | float | bool):
            raise refused(name, "a text, a number, True or False", _kind(value))
        found[name] = value
    return found


def for_prompts(shared: Wishes, prompt: Any, negative_prompt: Any) -> list[Wishes]:
    """`shared` for one prompt or for several, each with its negative one.

    Raises: InvalidRequest for what is neither; what each prompt may be is checked later.
    """
    prompts = [prompt] if isinstance(prompt, str) else _several(prompt)
    negatives = for_each("negative_prompt", negative_prompt, len(prompts))
    return [
        replace(shared, prompt=text, negative_prompt=negative)
        for text, negative in zip(prompts, negatives, strict=True)
    ]


def count_of(images: object, outputs: object) -> int:
    """How many outputs a prompt. Diffusers calls it one way for pictures and another for the rest; both may agree."""
    names = {"num_images_per_prompt": plain(images), "num_outputs_per_prompt": plain(outputs)}
    given = {name: value for name, value in names.items() if value is not None}
    for name, value in given.items():
        if type(value) is not int:
            raise refused(name, "a whole number", _kind(value))
        if not 1 <= value <= MAX_OUTPUTS:
            raise refused(name, f"1..{MAX_OUTPUTS}", shown(value))
    if len(set(given.values())) > 1:
        raise refused(
            "num_outputs_per_prompt", "the same as num_images_per_prompt, or nothing", "another number"
        )
    return next(iter(given.values()), 1)


def for_each(name: str, value: Any, count: int) -> list[Any]:
    """`value` for each of `count` prompts: itself, or its items."""
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise refused(name, f"one for each of the {count} prompts", str(len(value)))
    return list(value)


def with_seeds(wishes: Sequence[Wishes], seed: Any) -> list[Wishes]:
    """The wishes with a seed each; one that is drawn where none is given."""
    seed = plain(seed)
    if seed is None:
        return [replace(wish, seed=draw_seed()) for wish in wishes]
    if type(seed) is int:  # True is none
        return [replace(wish, seed=seed + place * wish.n) for place, wish in enumerate(wishes)]
    seeds = for_each("seed", seed, len(wishes))
    return [replace(wish, seed=plain(one)) for wish, one in zip(wishes, seeds, strict=True)]


def with_states(wishes: Sequence[Wishes], seed: object, states: Sequence[bytes]) -> list[Wishes]:
    """One wish a picture, each with its own generator's state."""
    if seed is not None:
        raise refused("seed", "either a seed or a generator", "both")
    single = [replace(wish, n=1) for wish in wishes for _ in range(wish.n)]
    if len(states) != len(single):
        raise refused("generator", f"one for each of the {len(single)} pictures", str(len(states)))
    return [replace(wish, generator_state=state) for wish, state in zip(single, states, strict=True)]


def _several(prompt: Any) -> list[Any]:
    if prompt is None or isinstance(prompt, bytes | Mapping) or not hasattr(prompt, "__iter__"):
        raise refused("prompt", "a text or a list of them", _kind(prompt))
    return list(prompt)


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
