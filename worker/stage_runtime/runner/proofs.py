"""What is proven of a pipeline at load, with a small request: that it can be shared, and that it can be resumed.

The request is played on the hub and through the targets that serve later, so what is proven is what will run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch

from stage_runtime.batching.probe import Ask as AskMany
from stage_runtime.core.error_codec import words_of
from stage_runtime.runner.base import Ask
from stage_runtime.runner.hub import DECODE
from stage_runtime.runner.output import OutputFormat, differs
from stage_runtime.runner.script_factory import ScriptFactory
from stage_runtime.scripts.replay import Checkpoint, Recording, can_interrupt, interrupt
from stage_runtime.scripts.script import Script

TRIAL: Final = "trial"
REPLAY: Final = "replay"

Arguments = dict[str, Any]
"""Of a small request, its generator among them."""


def small_requests(ask: Ask, output: OutputFormat, device: torch.device) -> AskMany:
    """Arguments of the probe's requests: of one output, or of several in one call."""

    def arguments(prompts: Sequence[str], seed: int, steps: int) -> dict[str, Any]:
        asked = {**ask(prompts[0], steps), **output.arguments}
        generators = [torch.Generator(device).manual_seed(seed + i) for i in range(len(prompts))]
        if len(prompts) == 1:
            return {**asked, "generator": generators[0]}
        texts = {
            name: [value] * len(prompts)
            for name, value in asked.items()
            if "prompt" in name and isinstance(value, str)
        }
        return {**asked, **texts, "prompt": list(prompts), "generator": generators}

    return arguments


def trial(factory: ScriptFactory, output: OutputFormat, arguments: Arguments, want: Any) -> tuple[Any, str]:
    """What a small request makes, and how that differs from `want` by more than rounding ("": it doesn't)."""
    script = _opened(factory, TRIAL, arguments)
    factory.hub.run([TRIAL])
    result, error = script.result, script.error
    factory.forget(TRIAL)
    if error is not None:
        return None, f"a small request failed: {words_of(error)}"
    return result, differs(output.convert(result, None), output.convert(want, None))


class Replays(NamedTuple):
    """Why a request can't be resumed bitwise, and why it can't be shown on its way; "" where it can."""

    resumed: str
    shown: str


def replays(
    factory: ScriptFactory, output: OutputFormat, arguments: Arguments, want: Any, steps: int
) -> Replays:
    """What replays are good for. `want`: what the small request gives whole, in so many steps.

    Sets `one_step_calls` of the factory.
    """
    try:
        middle, last = _checkpoints(factory, arguments, steps)
        interrupted = _interrupted(factory, arguments)
    except Exception as error:  # noqa: BLE001 - that it can't be replayed is a finding
        why = f"a replay failed: {words_of(error)}"[:300]
        return Replays(why, why)
    finally:
        factory.forget(REPLAY)

    def fault(start: Checkpoint, wanted: Any, what: str, *, decode_only: bool) -> str:
        try:
            why = _differs(factory, output, arguments, start, wanted, decode_only=decode_only)
        except Exception as error:  # noqa: BLE001 - that it can't be replayed is a finding
            why = f"failed: {words_of(error)}"[:300]
        finally:
            factory.forget(REPLAY)
        return why and f"a request {what} {why}"

    shown = fault(last, want, "decoded from its last step", decode_only=True) if last is not None else ""
    if not shown and interrupted is not None:
        shown = fault(middle, interrupted, "decoded from a step in the middle", decode_only=True)
    if factory.hub.overlay is not None:
        return Replays("it puts attention processors on the model", shown)
    return Replays(fault(middle, want, "resumed", decode_only=False), shown)


def _checkpoints(
    factory: ScriptFactory, arguments: Arguments, steps: int
) -> tuple[Checkpoint, Checkpoint | None]:
    """Of one in its middle and at its end; None where no component is called after the last step."""
    hub = factory.hub
    script = _opened(factory, REPLAY, arguments)
    recording = script.watcher
    assert isinstance(recording, Recording)
    while not factory.hub.tick([REPLAY]):
        factory.hub.await_answer()
    factory.one_step_calls = recording.first_step_calls
    middle = recording.checkpoint(script)
    while not script.done and (script.steps < steps or hub.phase(script) < DECODE):
        hub.serve([script])
    last = None if script.done else recording.checkpoint(script)
    factory.forget(REPLAY)
    return middle, last


def _interrupted(factory: ScriptFactory, arguments: Arguments) -> Any:
    """What a request makes that is interrupted after its first turn; None of a pipeline that can't be."""
    if not can_interrupt(factory.pipeline):
        return None
    script = _opened(factory, REPLAY, arguments)
    script.progress.on_turn = partial(interrupt, script.pipeline)
    factory.hub.run([REPLAY])
    result, error = script.result, script.error
    factory.forget(REPLAY)
    if error is not None:
        raise error
    return result


def _differs(
    factory: ScriptFactory,
    output: OutputFormat,
    arguments: Arguments,
    start: Checkpoint,
    want: Any,
    *,
    decode_only: bool,
) -> str:
    script = _opened(factory, REPLAY, arguments, start, decode_only=decode_only)
    factory.hub.run([REPLAY])
    if script.error is not None:
        return f"failed: {words_of(script.error)}"[:300]
    same = output.convert(script.result, None) == output.convert(want, None)
    return "" if same else "gives another picture"


def _opened(
    factory: ScriptFactory,
    name: str,
    arguments: Arguments,
    start: Checkpoint | None = None,
    *,
    decode_only: bool = False,
) -> Script:
    """A script with a fresh generator: a generator is used up by a run."""
    old = arguments["generator"]
    fresh = torch.Generator(old.device).manual_seed(old.initial_seed())
    return factory.open(name, arguments, fresh, start, decode_only=decode_only)
