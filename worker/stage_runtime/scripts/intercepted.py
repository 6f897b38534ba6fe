"""A request's own scheduler, with objects in its instance in place of two of its methods.

The scheduler's class stays what it is, since pipelines compare types, and a deep copy of it gets objects of its own.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, Final, Protocol, Self

import torch

from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import InvalidRequest

STEPS: Final = "num_inference_steps"
UNABLE: Final = (ArithmeticError, AssertionError, IndexError, ValueError)
"""What schedulers raise about a number of steps that they can't make."""


class Stepping(Protocol):
    """What carries out a scheduler's steps: a script."""

    def step(self, scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called from inside: one step."""


class Intercepted:
    """Stands in a scheduler's instance for the method `name`."""

    name: ClassVar[str]

    def __init__(self, script: Stepping, scheduler: Any) -> None:
        self.script, self.scheduler = script, scheduler

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(self.script, memo[id(self.scheduler)])

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(getattr(type(self.scheduler), self.name).__get__(self.scheduler))


class InterceptedStep(Intercepted):
    """Each step parks."""

    name = "step"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The step's result."""
        return self.script.step(self.scheduler, args, kwargs)


class InterceptedTimesteps(Intercepted):
    """A number of steps that the scheduler can't make is its client's fault, and told before the denoiser runs."""

    name = "set_timesteps"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises: InvalidRequest naming the field."""
        try:
            answer = type(self.scheduler).set_timesteps(self.scheduler, *args, **kwargs)
        except UNABLE as error:
            raise _refusal(self.scheduler, words_of(error)) from error
        if why := _timesteps_fault(self.scheduler):
            raise _refusal(self.scheduler, why)
        return answer


def intercept(scheduler: Any, script: Stepping) -> None:
    """Have the scheduler's steps go through `script`."""
    scheduler.__dict__["step"] = InterceptedStep(script, scheduler)
    if hasattr(type(scheduler), "set_timesteps"):
        scheduler.__dict__["set_timesteps"] = InterceptedTimesteps(script, scheduler)


def own_step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
    """A step as the scheduler's class makes it. Raises: InvalidRequest for one that its tables have no place for."""
    try:
        return type(scheduler).step(scheduler, *args, **kwargs)
    except (ArithmeticError, AssertionError, IndexError) as error:
        raise _refusal(scheduler, words_of(error)) from error


def _refusal(scheduler: Any, why: str) -> InvalidRequest:
    asked = getattr(scheduler, STEPS, None)
    number = f"{asked} steps" if asked else "so many steps"
    return InvalidRequest(
        f"{STEPS}: the model's {type(scheduler).__name__} can't make {number}: {why[:300]}", STEPS
    )


def _looks_back(scheduler: Any) -> bool:
    """True for one that divides by how far its last steps were apart."""
    config = getattr(scheduler, "config", {})
    orders = [config.get(name) or 1 for name in ("solver_order", "predictor_order", "corrector_order")]
    return max(orders) > 1 and not hasattr(scheduler, "order_list")


def _timesteps_fault(scheduler: Any) -> str:
    """Why the time steps that were set can't be gone through; "" if they can."""
    times = getattr(scheduler, "timesteps", None)
    if not isinstance(times, torch.Tensor):
        return ""
    if not times.numel():
        return "it has none to make"
    sigmas = getattr(scheduler, "sigmas", None)
    for numbers in (times, sigmas):
        if isinstance(numbers, torch.Tensor) and not bool(torch.isfinite(numbers).all()):
            return "their times are not finite"
    if isinstance(sigmas, torch.Tensor):
        if times.numel() > 1 and bool((times == times[0]).all()):
            return "their times are all the same"
        if _looks_back(scheduler) and bool((sigmas[:-1].diff() == 0).any()):
            return "two of their times are the same"
    table = getattr(scheduler, "alphas_cumprod", None)
    # those with sigmas interpolate between the entries; the others look each time up
    if isinstance(table, torch.Tensor) and sigmas is None and not times.is_floating_point():
        first, last = int(times.min()), int(times.max())
        if not 0 <= first <= last < len(table):
            return f"their times {first}..{last} leave its table of {len(table)}"
    return ""
