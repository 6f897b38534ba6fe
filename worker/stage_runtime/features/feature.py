"""What a capability beyond plain serving may do to a rank, and when: the one way in for all of them.

A feature is a class with this one's methods; it implements those that it needs, and the rest do nothing. One that a
stage doesn't ask for is never made, so it leaves no trace. `assemble_rank` has them all in one ordered tuple and calls
them in this order:

1. `claim`, before anything loads: the spec asks for it, or not, or asks for what can't be;
2. `reads`, while the model is read: a part is built otherwise, or only some of its weights are read;
3. `install`, between load and probe: so that probe, self-check and the proof of replay see the model as it will run;
4. `hooks`, for the calls of the probe and all later ones;
5. `target`, once the probe has found what the model is like: calls go to it first, and it passes them on. The first
   feature of the tuple is the outermost: rows are dealt before a call is cut;
6. for each request `attend` before its script begins, and `forget` when it has ended, however it did;
7. `close`, when the rank ends or its engine lets go of the model.

A feature runs no request and keeps no lifecycle of its own (DIFF-RUNTIME-INV-004).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from stage_api.config import StageConfig
from stage_api.errors import Fault, SpecError
from stage_runtime.batching.probe import Findings
from stage_runtime.core.request import Request
from stage_runtime.parallel.context import DataGroup, ParallelContext
from stage_runtime.pipelines.contract import ResolvedModel
from stage_runtime.pipelines.parts import ReadPart
from stage_runtime.scripts.hooks import CallHook
from stage_runtime.scripts.script import Call, Script
from stage_runtime.scripts.target import Target


class Unsuitable(Exception):
    """This model can't be served with the feature; the message says why, for whoever wrote the spec."""


@dataclass(frozen=True, slots=True)
class Served:
    """The model as far as it is known when targets are made."""

    found: Findings
    hooked: bool
    """Requests hook the shared modules, so that each rank needs all of its calls."""
    needs_solo: Callable[[Call], bool]
    """Whether some hook wants a call to run alone."""
    context: ParallelContext | None
    """The other ranks; None where this one has the model for itself."""


class Feature:
    """One capability of one rank. What needs the other ranks is called on all of them, in one order."""

    field: ClassVar[str] = ""
    """Where in a manifest it is asked for; a model that turns out unsuitable is a fault there."""
    asked: str = ""
    """What the manifest has there."""
    otherwise: str = ""
    """What it could have there for a model that is unsuitable."""
    data: Collection[DataGroup] = ()
    """Groups of ranks whose tensors it exchanges; they are made before anything loads."""

    @classmethod
    def claim(cls, config: StageConfig, model: ResolvedModel) -> Self | None:
        """The feature, where this stage asks for it. Raises: SpecError for what can't be had of this model.

        No weight is read yet, and no other rank was met.
        """
        return None

    def reads(self, read: ReadPart) -> ReadPart:
        """What reads each part of the model, around `read`, which reads it whole."""
        return read

    def install(self, model: Any, device: torch.device) -> None:
        """Change the loaded pipeline or step model for good. Raises: Unsuitable."""

    def hooks(self, model: Any) -> Sequence[CallHook]:
        """What must hold around calls of its modules, alone and merged."""
        return ()

    def target(self, inner: Target, served: Served) -> Target:
        """What calls go to instead of `inner`. Raises: Unsuitable.

        One that returns another target is tried with a small request, whose output must be what `inner` alone gives.
        """
        return inner

    def attend(self, script: Script, request: Request | None) -> None:
        """A script is about to begin. `request` is None for one that the runtime makes to try the model."""

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a script. Unknown ids are no error."""

    def held(self) -> dict[str, int]:
        """What is kept, by kind; all 0 at rest."""
        return {}

    def close(self) -> None:
        """Let go of everything. Idempotent."""


Features = tuple[Feature, ...]


def claimed(kinds: Sequence[type[Feature]], config: StageConfig, model: ResolvedModel) -> Features:
    """The features that a stage asks for, in the order of `kinds`. Raises: SpecError with the faults of all of them."""
    found: list[Feature] = []
    faults: list[Fault] = []
    for kind in kinds:
        try:
            feature = kind.claim(config, model)
        except SpecError as error:
            faults += error.faults
        else:
            found += [] if feature is None else [feature]
    if faults:
        raise SpecError(faults)
    return tuple(found)


def carried_by(runner: type, features: Features) -> None:
    """A runner that is none of the runtime's own knows no hooks and no targets. Raises: SpecError where some are asked
    for, since they would be dropped without a word.
    """
    lost = [one for one in features if any(_brings(one, what) for what in ("hooks", "target"))]
    if lost:
        expected = f"a subclass of runner.runner.Runner, for {', '.join(one.field for one in lost)}"
        raise SpecError([Fault("spec.engine.extensions.runner", expected, runner.__name__)])


def _brings(feature: Feature, method: str) -> bool:
    return getattr(type(feature), method) is not getattr(Feature, method)


def suited(feature: Feature, why: str, agree: Callable[[bool], bool]) -> None:
    """Go on where the model suits the feature on every rank: `why` is what is against it here, "" if nothing.

    Raises: SpecError, on every rank, at the feature's field.
    """
    if not agree(why == ""):
        expected = f"{feature.otherwise} for this model: {why or 'another rank found so'}"
        raise SpecError([Fault(feature.field, expected, feature.asked)])
