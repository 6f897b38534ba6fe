"""From a client's wishes to requests: the one place where they are checked and where defaults are filled in.

HTTP and Python, step mode and request mode all come through here, so they can't differ. Whatever passes holds only
arguments that the record knows; whatever doesn't is an InvalidRequest that names the field as the client wrote it.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from msgspec.structs import replace as with_changes

from stage_api.errors import Fault, SpecError
from stage_runtime.core.errors import InvalidRequest
from stage_runtime.core.outcome import Modality
from stage_runtime.core.request import BatchKey, Request, Value
from stage_runtime.pipelines import checks
from stage_runtime.pipelines.checks import Refused
from stage_runtime.pipelines.contract import (
    MAX_OUTPUTS,
    MAX_PREVIEWS,
    MAX_SEED,
    Defaults,
    FieldClass,
    PipelineRecord,
    ResolvedModel,
    Wishes,
)

log = logging.getLogger(__name__)

UNSAID_PIXELS: Final = 1024 * 1024
"""Pixels of a picture whose size only the pipeline knows; it weighs such requests alike."""
UNSAID_SECONDS: Final = 60.0
SMALL_SIDE: Final = 4
"""Side of the smallest telling picture, in steps of the size."""
MAX_GENERATOR_STATE: Final = 65_536
"""Bytes; a CPU generator of torch has 5056."""
SPEC_NAMES: Final = {
    "num_inference_steps": "numInferenceSteps",
    "guidance_scale": "guidanceScale",
    "negative_prompt": "negativePrompt",
}


def draw_seed() -> int:
    """A seed for a client that gave none: below 2**32, so that any client can read it back and send it again."""
    return secrets.randbelow(2**32)


def build_requests(
    model: ResolvedModel, wishes: Wishes, *, request_id: str, random_seed: Callable[[], int] = draw_seed
) -> list[Request]:
    """One request an output, `<request_id>-0` and so on, with the seeds s, s+1, …

    Raises: InvalidRequest, naming the field, for anything that this model can't do.
    """
    record = model.record
    names: dict[str, str] = {}
    try:
        wishes, names = _by_wish(record, wishes)
        wishes = _with_defaults(model, wishes)
        arguments = _arguments(record, wishes)
        seeds = _seeds(wishes, random_seed)
        previews = _preview_steps(record, wishes)
    except Refused as refused:
        field = names.get(refused.field, refused.field)
        raise InvalidRequest(f"{field}: expected {refused.expected}, got {refused.got}", field) from None
    _warn_of_idle_negative_prompt(record, wishes, arguments, request_id)
    steps = checks.whole("num_inference_steps", arguments[record.steps_argument], 1, record.limits.max_steps)
    shared = sorted(name for name in arguments if record.classes[name] is FieldClass.SHARED)
    key = BatchKey(tuple((name, arguments[name]) for name in shared))
    return [
        Request(
            request_id=f"{request_id}-{i}",
            arguments=dict(arguments),
            key=key,
            seed=seed,
            steps=steps,
            pixels=_work_of(record, wishes),
            generator_state=wishes.generator_state,
            preview_steps=previews,
            chunks=wishes.chunks,
        )
        for i, seed in enumerate(seeds)
    ]


def check_prompt(model: ResolvedModel, wishes: Wishes) -> None:
    """Find out without a device whether the model can read the prompt. Raises: InvalidRequest."""
    if model.record.check_prompt is not None:
        model.record.check_prompt(wishes.prompt)


def lay_defaults(model: ResolvedModel, stage: Defaults) -> ResolvedModel:
    """The model with a stage's defaults over its own.

    Raises: SpecError naming `spec.model.defaults.…` when a request that says nothing would be refused.
    """
    laid = replace(model, defaults=model.defaults.overlaid(stage))
    try:
        _refuse_unreachable(laid.record, stage)
        _arguments(laid.record, _with_defaults(laid, Wishes(prompt="")))
    except Refused as refused:
        path = f"spec.model.defaults.{SPEC_NAMES.get(refused.field, refused.field)}"
        raise SpecError([Fault(path, f"{refused.expected} (of {model.record.name})", refused.got)]) from None
    return laid


def small_arguments(model: ResolvedModel, prompt: str | None, steps: int) -> dict[str, Value]:
    """Arguments of the smallest request that shows how the pipeline works, guidance included; for the probe at load.

    `prompt`: None for one that the model surely can draw. Raises: InvalidRequest when the record has no such request.
    """
    record = model.record
    side = min(SMALL_SIDE * record.limits.size_multiple, record.limits.max_side)
    width, height = min(record.limits.sizes, key=math.prod, default=(side, side))
    small = {
        "width": width,
        "height": height,
        "num_frames": 1 + record.limits.frame_step,
        "negative_prompt": "",
    }
    reachable = {name: value for name, value in small.items() if name in record.wished.values()}
    text = record.example_prompt if prompt is None else prompt
    wishes = with_changes(Wishes(prompt=text, num_inference_steps=steps, seed=0), **reachable)
    return build_requests(model, wishes, request_id="probe")[0].arguments


def _by_wish(record: PipelineRecord, wishes: Wishes) -> tuple[Wishes, dict[str, str]]:
    """Move what came under a pipeline's name to the wish of the same meaning; with it the names that were used.

    Where a wish's name is another argument of the pipeline, and both are given, each is what the pipeline calls so.
    """
    moved: dict[str, Value] = {}
    names: dict[str, str] = {}
    rest: dict[str, Value] = {}
    for name, value in wishes.extra.items():
        wish = record.wished.get(name)
        if wish is None:
            rest[name] = value
        elif value is not None:
            said = getattr(wishes, wish)
            if said not in (None, value):
                if wish not in record.open_arguments - set(record.wished):
                    raise Refused(name, f"the same as {wish}, or nothing", "another value")
                rest[wish] = _extra(record, wish, said)
            moved[wish], names[wish] = value, name
    return with_changes(wishes, **moved, extra=rest), names


def _with_defaults(model: ResolvedModel, wishes: Wishes) -> Wishes:
    """Fill in what wasn't said, where this pipeline can be told."""
    reachable = set(model.record.wished.values())
    fallback = {
        name: value
        for name in Defaults.__dataclass_fields__
        if name in reachable and getattr(wishes, name) is None
        if (value := getattr(model.defaults, name)) is not None
    }
    if "negative_prompt" in reachable and wishes.negative_prompt is None:
        fallback.setdefault("negative_prompt", model.record.negative_prompt.when_absent)
    return with_changes(wishes, **fallback)


def _refuse_unreachable(record: PipelineRecord, said: Wishes | Defaults) -> None:
    """Nothing that the pipeline can't be told is passed over in silence."""
    for wish in set(Defaults.__dataclass_fields__) - set(record.wished.values()):
        if getattr(said, wish) is not None:
            raise Refused(wish, f"nothing, since {record.pipeline_class} can't be told", "a value")


def _arguments(record: PipelineRecord, wishes: Wishes) -> dict[str, Value]:
    """The pipeline's keyword arguments, every one of them checked."""
    _refuse_unreachable(record, wishes)
    limits = record.limits
    checked: dict[str, Value] = {
        "prompt": checks.text("prompt", wishes.prompt, limits.max_prompt_chars),
        "negative_prompt": checks.optional(
            checks.text, "negative_prompt", wishes.negative_prompt, limits.max_prompt_chars
        ),
        "width": checks.optional(checks.side, "width", wishes.width, limits),
        "height": checks.optional(checks.side, "height", wishes.height, limits),
        "num_inference_steps": checks.whole(
            "num_inference_steps", wishes.num_inference_steps, 1, limits.max_steps
        ),
        "guidance_scale": checks.optional(
            checks.number, "guidance_scale", wishes.guidance_scale, 0.0, limits.max_guidance
        ),
        "num_frames": checks.optional(checks.frames, "num_frames", wishes.num_frames, limits),
        "seconds": checks.optional(checks.seconds, "seconds", wishes.seconds, limits),
    }
    checks.size("width", checked["width"], checked["height"], limits)
    argument_of = {wish: argument for argument, wish in record.wished.items()}
    arguments: dict[str, Value] = dict(record.constants)
    arguments |= {argument_of[wish]: value for wish, value in checked.items() if value is not None}
    return arguments | {name: _extra(record, name, value) for name, value in wishes.extra.items()}


def _extra(record: PipelineRecord, name: str, value: Value) -> Value:
    option = record.options.get(name)
    if option is not None:
        return checks.option(name, value, option)
    kind = record.classes.get(name)
    if kind is FieldClass.ENGINE:
        raise Refused(name, "nothing, since the runtime sets it", "a value")
    if kind is FieldClass.UNSUPPORTED:
        raise Refused(name, f"nothing, since it isn't supported for {record.pipeline_class}", "a value")
    if not record.options:
        raise Refused(name, f"nothing, since {record.pipeline_class} has no such argument", "a value")
    raise Refused(
        name, f"an argument of {record.pipeline_class}: {', '.join(sorted(record.options))}", "another"
    )


def _seeds(wishes: Wishes, random_seed: Callable[[], int]) -> range:
    count = checks.whole("n", wishes.n, 1, MAX_OUTPUTS)
    if wishes.generator_state is not None:
        if wishes.seed is not None:
            raise Refused("seed", "either a seed or a generator's state", "both")
        if count != 1:
            raise Refused("n", "1 with a generator's state, since each output needs its own", str(count))
        size = len(wishes.generator_state)
        if not 0 < size <= MAX_GENERATOR_STATE:
            raise Refused("generator_state", f"1..{MAX_GENERATOR_STATE} bytes", f"{size} bytes")
        return range(1)
    if wishes.seed is None:
        first = random_seed()
    else:
        last = MAX_SEED - count + 1
        first = checks.whole("seed", wishes.seed, 0, last)
    return range(first, first + count)


def _preview_steps(record: PipelineRecord, wishes: Wishes) -> tuple[int, ...]:
    """Evenly spread, none of them the last step; fewer than asked for when there are too few steps."""
    count = checks.whole("partial_images", wishes.partial_images, 0, MAX_PREVIEWS)
    if count and record.modality is not Modality.IMAGE:
        raise Refused("partial_images", f"0, since {record.pipeline_class} makes no pictures", str(count))
    steps = wishes.num_inference_steps or 0
    count = min(count, max(0, steps - 1))
    return tuple(steps * (i + 1) // (count + 1) for i in range(count))


def _work_of(record: PipelineRecord, wishes: Wishes) -> int:
    """Pixels of all frames, or samples of audio."""
    if record.modality is Modality.AUDIO:
        seconds = wishes.seconds or record.limits.max_seconds or UNSAID_SECONDS
        return max(1, round(seconds * (record.sample_rate or 1)))
    area = wishes.width * wishes.height if wishes.width and wishes.height else UNSAID_PIXELS
    return area * (wishes.num_frames or 1)


def _warn_of_idle_negative_prompt(
    record: PipelineRecord, wishes: Wishes, arguments: Mapping[str, Value], request_id: str
) -> None:
    """Only classifier-free guidance above 1 reads a negative prompt."""
    scale = arguments.get(record.guidance.of_second_pass or "")
    idle = scale is None if record.guidance.second_pass else False
    idle = idle or (isinstance(scale, int | float) and scale <= 1)
    if wishes.negative_prompt and idle:
        log.warning("negative prompt has no effect", extra={"request_id": request_id})
