"""What is proven of a pipeline at load, with a small request: that it can be shared, and that it can be resumed.

The request is played on the hub and through the targets that serve later, so what is proven is what will run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from stage_runtime.batching.probe import STEPS
from stage_runtime.batching.probe import Ask as AskMany
from stage_runtime.core.error_codec import words_of
from stage_runtime.runner.base import Ask
from stage_runtime.runner.hub import DECODE
from stage_runtime.runner.output import OutputFormat, differs
from stage_runtime.runner.script_factory import ScriptFactory
from stage_runtime.scripts.replay import Checkpoint, Recording
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


def replay_fault(factory: ScriptFactory, output: OutputFormat, arguments: Arguments, want: Any) -> str:
    """Why a request can't be resumed bitwise or decoded at any step; "" if it can. `want`: what it gives whole.

    Sets `one_step_calls` of the factory.
    """
    if factory.hub.overlay is not None:
        return "it puts attention processors on the model"
    try:
        return _played_again(factory, output, arguments, want)
    except Exception as error:  # noqa: BLE001 - that it can't be replayed is a finding
        return f"a replay failed: {words_of(error)}"[:300]
    finally:
        factory.forget(REPLAY)


def _played_again(factory: ScriptFactory, output: OutputFormat, arguments: Arguments, want: Any) -> str:
    """Run, take checkpoints in the middle and at the end, and play both again; what differs, or ""."""
    hub = factory.hub
    script = _opened(factory, REPLAY, arguments)
    recording = script.watcher
    assert isinstance(recording, Recording)
    while not hub.tick([REPLAY]):
        hub.await_answer()
    factory.one_step_calls = recording.first_step_calls
    middle = recording.checkpoint(script)
    while not script.done and (script.steps < STEPS or hub.phase(script) < DECODE):
        hub.serve([script])
    # without a component call after the last step there is no place to take one
    last = None if script.done else recording.checkpoint(script)
    factory.forget(REPLAY)
    if fault := _differs(factory, output, arguments, middle, want, decode_only=False):
        return f"a request resumed {fault}"
    if last is not None and (fault := _differs(factory, output, arguments, last, want, decode_only=True)):
        return f"a request decoded from its last step {fault}"
    return ""


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
    result, error = script.result, script.error
    factory.forget(REPLAY)
    if error is not None:
        return f"failed: {words_of(error)}"[:300]
    same = output.convert(result, None) == output.convert(want, None)
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
