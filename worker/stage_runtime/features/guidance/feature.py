"""Guidance on two ranks, as a feature: what it asks of a model, and which of its calls are spread."""

from __future__ import annotations

from typing import ClassVar, Final, Self

from stage_api.config import StageConfig
from stage_api.errors import Fault, SpecError
from stage_runtime.batching.batcher import Method
from stage_runtime.batching.probe import Findings
from stage_runtime.core.request import Request
from stage_runtime.features.feature import Feature, Served, Unsuitable
from stage_runtime.features.guidance.target import GuidanceTarget
from stage_runtime.parallel.context import DataGroup
from stage_runtime.pipelines.contract import ResolvedModel
from stage_runtime.scripts.script import Script
from stage_runtime.scripts.target import Target

AXIS: Final[DataGroup] = "cfg"


class Guidance(Feature):
    """`parallelism.cfg`: the halves of a doubled batch, or the calls that a step makes, on a rank each."""

    field: ClassVar[str] = "spec.parallelism.cfg"
    otherwise = "1"
    data = (AXIS,)

    def __init__(self, degree: int) -> None:
        self.asked = str(degree)
        self._target: GuidanceTarget | None = None

    @classmethod
    def claim(cls, config: StageConfig, model: ResolvedModel) -> Self | None:
        """For more than one rank.

        Raises: SpecError for a step model, which computes both halves in one call that nobody can divide.
        """
        degree = config.parallelism.cfg
        if degree == 1:
            return None
        if model.record.step_model is not None:
            expected = f"1, since {model.record.pipeline_class} computes its guidance in one call"
            raise SpecError([Fault(cls.field, expected, str(degree))])
        return cls(degree)

    def target(self, inner: Target, served: Served) -> Target:
        """Spread are the denoisers' calls, and the decoders'; nothing of a model that keeps state, or that requests
        put processors on, since each rank needs all of its calls then. Encoders aren't: their answers are large and
        few. Raises: Unsuitable for such a model.
        """
        found, context = served.found, served.context
        assert context is not None, "two ranks have met"
        pure = not found.impurity and not served.hooked
        methods = {
            method
            for method in found.plain
            if pure and (method[0] in found.denoisers or method[1] == "decode")
        }
        if not any(name in found.denoisers for name, _ in methods):
            raise Unsuitable(_obstacle(found, hooked=served.hooked))
        self._target = GuidanceTarget(
            inner,
            context.control,
            context.data[AXIS],
            specs={method: spec for method, spec in found.specs.items() if method[0] in found.denoisers},
            methods=methods,
            deferred={name for name in found.denoisers if found.counts_steps and _forward(name) in methods},
            needs_solo=served.needs_solo,
        )
        return self._target

    def attend(self, script: Script, request: Request | None) -> None:
        """Let it go on before its denoiser's calls are answered."""
        if self._target is not None:
            self._target.attend(script)

    def forget(self, request_id: str) -> None:
        """Look after that script no more."""
        if self._target is not None:
            self._target.leave(request_id)

    def held(self) -> dict[str, int]:
        """Scripts that are looked after."""
        return {"guided": 0 if self._target is None else len(self._target)}

    def close(self) -> None:
        """Let go of the ranks."""
        self._target = None


def _forward(component: str) -> Method:
    return component, "forward"


def _obstacle(found: Findings, *, hooked: bool) -> str:
    """Why no denoiser's call may be spread."""
    if found.impurity:
        return found.impurity
    if hooked:
        return "each rank needs all calls, since requests hook the model"
    return "the denoiser answers with more than tensors"
