"""Requests that the runtime makes for itself, to warm a stage up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stage_api.errors import Fault, SpecError
from stage_api.spec import WarmupSpec
from stage_runtime.core.request import Request
from stage_runtime.pipelines import checks
from stage_runtime.pipelines.arguments import SPEC_NAMES, build_requests
from stage_runtime.pipelines.checks import Refused
from stage_runtime.pipelines.contract import ResolvedModel, Wishes

STEPS: Final = 2
"""Multistep solvers take another path from their second step on."""


def warmup_requests(model: ResolvedModel, shapes: Sequence[WarmupSpec]) -> list[list[Request]]:
    """Groups of requests to run together, one group after the other; one request of the default size for no shapes.

    Raises: SpecError naming `spec.engine.warmup[…]` for a shape that the model can't draw.
    """
    if not shapes:
        return [
            build_requests(
                model,
                Wishes(prompt=model.record.example_prompt, num_inference_steps=STEPS, seed=0),
                request_id="warmup",
            )
        ]
    if faults := [fault for place, shape in enumerate(shapes) for fault in _faults(model, place, shape)]:
        raise SpecError(faults)
    return [
        build_requests(
            model,
            Wishes(
                prompt=model.record.example_prompt,
                width=shape.width,
                height=shape.height,
                num_inference_steps=shape.num_inference_steps,
                n=shape.batch,
                seed=0,
            ),
            request_id=f"warmup-{place}",
        )
        for place, shape in enumerate(shapes)
    ]


def _faults(model: ResolvedModel, place: int, shape: WarmupSpec) -> list[Fault]:
    limits, faults = model.record.limits, []
    told = set(model.record.wished.values())
    for name in ("width", "height", "num_inference_steps"):
        path = f"spec.engine.warmup[{place}].{SPEC_NAMES.get(name, name)}"
        value = getattr(shape, name)
        try:
            if name not in told:
                raise Refused(
                    name, f"no shapes, since {model.record.pipeline_class} can't be told", str(value)
                )
            if name == "num_inference_steps":
                checks.whole(name, value, 1, limits.max_steps)
            else:
                checks.side(name, value, limits)
        except Refused as refused:
            faults.append(Fault(path, f"{refused.expected} (of {model.record.name})", refused.got))
    return faults
