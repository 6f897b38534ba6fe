"""What a loaded pipeline can do, found out by running it: which components make the steps, how their calls scale.

The probe runs the pipeline for one request and for two in one call, and compares the calls. The self-check then
merges recorded calls and compares with what the module gives for each alone: what differs, keeps state or edits its
arguments runs alone from then on. So a capability is a measured fact, never a guess from a class name.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from stage_runtime.batching.batcher import Method
from stage_runtime.batching.spec import (
    LIST,
    BatchSpec,
    Padding,
    SharedTensors,
    Unmergeable,
    derive_axes,
    padding_for,
)
from stage_runtime.batching.tape import Loaded, Tape, Taped, positional, record, run
from stage_runtime.core.capability import ComponentCapability
from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import ModelError
from stage_runtime.core.memory_errors import out_of_memory
from stage_runtime.scripts.progress import LoopPlan, Unit
from stage_runtime.scripts.tensor_tree import Path, clone, is_plain, relative_error, tensors

log = logging.getLogger(__name__)

TOLERANCE: Final[dict[torch.dtype, float]] = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest relative difference that another batch size alone may make to a call, by dtype."""
PROMPT: Final = "a red circle"
LONG_PROMPT: Final = "two large blue squares on a table beside a window"
SEED: Final = 1
STEPS: Final = 2
MORE_STEPS: Final = 4
"""Of the run that shows how loops grow with the steps asked for."""
ENOUGH_STEPS: Final = 50
"""For a class that can't be run in a few."""
PAD_BY: Final = 3
"""Tokens of padding that the self-check adds."""

Ask = Callable[[Sequence[str], int, int], dict[str, Any]]
"""(prompts, seed, steps) → arguments of the pipeline for that many outputs."""


@dataclass(slots=True)
class Findings:
    """What the probe found."""

    denoisers: tuple[str, ...]
    counts_steps: bool
    steps: bool
    """Its work goes in steps that are seen, or that grow with the number asked for."""
    plan: LoopPlan
    """What its loops are."""
    specs: dict[Method, BatchSpec]
    plain: frozenset[Method]
    """Methods that answer with tensors and plain values only."""
    components: list[ComponentCapability]
    impurity: str
    """Why some answers don't depend on the arguments of their call alone; empty when all do."""
    disturbs_processors: bool
    few: int
    """Steps of small requests: STEPS, or more for a class that needs more."""
    result: Any
    """What the pipeline gave for `ask([PROMPT], SEED, few)`."""


def probe(loaded: Loaded, ask: Ask) -> Findings:
    """Run the pipeline a few steps and find out. Raises ModelError when it can't be run or calls no component."""
    with torch.no_grad():
        steps, one = _first(loaded, ask)
        if not one.calls:
            raise ModelError(f"{loaded.name} called none of its components")
        reason = ""
        two = None
        try:
            two = record(loaded, ask([PROMPT, PROMPT], SEED, steps))
        except ModelError as why:
            reason = f"it can't make two at once ({why})"
        return _findings(loaded, (steps, one), two, _longer(loaded, ask, steps), reason)


def _first(loaded: Loaded, ask: Ask) -> tuple[int, Tape]:
    """The first run, and in how many steps it can be made. Raises: ModelError with what few steps failed of."""
    try:
        return STEPS, _in_tiles_if_need_be(loaded, ask, STEPS)
    except ModelError as error:
        if isinstance(error.__cause__, NameError):
            raise
        try:
            return ENOUGH_STEPS, _in_tiles_if_need_be(loaded, ask, ENOUGH_STEPS)
        except ModelError:
            raise error from error.__cause__


def _longer(loaded: Loaded, ask: Ask, steps: int) -> tuple[int, Tape]:
    """A run of another prompt in more steps, if the class can be run in more."""
    more = steps + MORE_STEPS - STEPS
    try:
        return more, record(loaded, ask([LONG_PROMPT], SEED + 1, more))
    except ModelError as error:
        log.info("can't be run in more steps", extra={"why": words_of(error)[:200], "steps": more})
        return steps, record(loaded, ask([LONG_PROMPT], SEED + 1, steps))


def _in_tiles_if_need_be(loaded: Loaded, ask: Ask, steps: int) -> Tape:
    try:
        return record(loaded, ask([PROMPT], SEED, steps))
    except ModelError as error:
        tile = [t for m in loaded.modules.values() if callable(t := getattr(m, "enable_tiling", None))]
        if not isinstance(error.__cause__, NotImplementedError) or not tile:
            raise
        for enable in tile:
            enable()
        log.info("decoding in tiles", extra={"why": words_of(error.__cause__)[:200]})
        return record(loaded, ask([PROMPT], SEED, steps))


def _plan(few: tuple[int, Tape], more: tuple[int, Tape]) -> LoopPlan:
    (steps, one), (more_steps, other) = few, more
    if any(one.loops):
        return LoopPlan.measured(Unit.LOOP, (steps, one.loops), (more_steps, other.loops))
    if one.steps:
        return LoopPlan.measured(Unit.SCHEDULER, (steps, [one.steps]), (more_steps, [other.steps]))
    return LoopPlan(Unit.CALL)


def _findings(
    loaded: Loaded, few: tuple[int, Tape], two: Tape | None, more: tuple[int, Tape], reason: str
) -> Findings:
    (steps, one), (_, other) = few, more
    counts_steps = one.steps > 0
    denoisers = (
        tuple(one.denoisers)
        if counts_steps
        else (Counter(c.component for c in one.calls).most_common(1)[0][0],)
    )
    methods = list(dict.fromkeys((call.component, call.method) for call in one.calls))
    specs: dict[Method, BatchSpec] = {}
    plain = frozenset(method for method in methods if all(is_plain(call.result) for call in _of(one, method)))
    capabilities = []
    faults = []
    for method in methods:
        mine, theirs = _of(one, method), _of(other, method)
        module = loaded.modules[method[0]]
        name = ".".join(method)
        impure = (
            "keeps a step cache"
            if method[0] in loaded.contexts.modules
            else _impurity(module, [*mine, *theirs])
        )
        if impure:
            faults.append(f"{name} {impure}")
        try:
            if impure or two is None:
                raise Unmergeable(impure or reason)
            spec = _checked(module, _derive(module, mine, _of(two, method)), mine, theirs)
        except Exception as why:
            if out_of_memory(why):
                raise
            told = (
                str(why) if isinstance(why, Unmergeable) else f"its calls can't be compared: {words_of(why)}"
            )
            capabilities.append(ComponentCapability(name=name, merges=False, reason=told[:300]))
        else:
            specs[method] = spec
            ragged = spec.padding is not None or spec.ragged_lists
            capabilities.append(ComponentCapability(name=name, merges=True, ragged=ragged))
    impurity = "; ".join(faults)
    return Findings(
        denoisers,
        counts_steps,
        counts_steps or any(one.loops) or len(one.calls) != len(other.calls),
        _plan(few, more),
        specs,
        plain,
        capabilities,
        impurity,
        one.disturbed,
        steps,
        one.result,
    )


def _of(tape: Tape, method: Method) -> list[Taped]:
    return [call for call in tape.calls if (call.component, call.method) == method]


def _impurity(module: torch.nn.Module, calls: list[Taped]) -> str:
    """Why a module's answers can't be relied on to depend on its arguments alone; empty when they do."""
    if any(call.wrote for call in calls):
        return "writes to its arguments"
    if any(call.own_processors for call in calls):
        # Asked again without them it would answer otherwise, and with them it is one request's alone.
        return "is called with attention processors that each request brings"
    first, second = calls[0], calls[-1]
    try:
        run(module, second.method, clone(second.arguments))
        again = run(module, first.method, clone(first.arguments))
    except Exception as error:
        if out_of_memory(error):
            raise
        return f"can't be asked the same again ({words_of(error)[:200]})"
    if relative_error(again, first.result) != 0.0:
        return "answers the same call differently the second time"
    return ""


def _derive(module: torch.nn.Module, one: list[Taped], two: list[Taped]) -> BatchSpec:
    """The axes of a method, from its calls for one request and the matching ones for two."""
    if len(one) != len(two):
        raise Unmergeable(
            f"it is called {len(one)} times for one request and {len(two)} times for two at once"
        )
    axes: dict[Path, int | str] = {}
    seen: set[Path] = set()
    unlike: set[Path] = set()
    for left, right in zip(one, two, strict=True):
        some_axes, some_seen, some_unlike = derive_axes(left.arguments, right.arguments)
        for path in some_seen & seen:
            if axes.get(path) != some_axes.get(path):
                raise Unmergeable(
                    f"argument {'.'.join(map(str, path))} scales in some calls and not in others"
                )
        axes.update(some_axes)
        seen |= some_seen
        unlike |= some_unlike
    if not axes:
        raise Unmergeable("nothing in its calls grows with the number of requests")
    parameters = positional(module, one[0].method)
    return BatchSpec(parameters, axes, frozenset(seen - unlike))


def _checked(module: torch.nn.Module, spec: BatchSpec, mine: list[Taped], theirs: list[Taped]) -> BatchSpec:
    """`spec`, with padding where the module takes it well. Raises Unmergeable when a merged call answers wrongly."""
    alike = [call for call in mine if _key(spec, call) == _key(spec, mine[0])]
    if wrong := _merge_fault(module, spec, [mine[0], alike[-1]]):
        raise Unmergeable(wrong)
    fitting = [call for call in theirs if _key(spec, call) == _key(spec, mine[0])]
    if fitting and (wrong := _merge_fault(module, spec, [mine[0], fitting[-1]])):
        raise Unmergeable(wrong)
    if LIST in spec.axes.values():
        ragged = replace(spec, ragged_lists=True)
        if _merge_fault(module, ragged, [mine[-1], theirs[0]]) == "":
            spec = ragged
    names = padding_for(spec.parameters, spec.axes)
    if names is None:
        return spec
    padded = _with_padding(module, spec, names, mine[0])
    if padded is not None and _merge_fault(module, padded, [mine[-1], theirs[0]]) == "":
        return padded
    return spec


def _with_padding(
    module: torch.nn.Module, spec: BatchSpec, names: tuple[str, str], call: Taped
) -> BatchSpec | None:
    """`spec` with padding, if the module gives the same answer for a padded and masked call."""
    argument, mask = names
    text = call.arguments[argument]
    given = call.arguments.get(mask)
    padding = Padding(argument, mask, torch.bool if given is None else given.dtype)
    trial = replace(spec, padding=padding)
    longer = {
        **call.arguments,
        argument: torch.cat([text, text[:, -1:].expand(-1, PAD_BY, *text.shape[2:])], dim=1),
    }
    if given is not None:
        longer[mask] = torch.cat([given, given[:, -1:].expand(-1, PAD_BY)], dim=1)
    try:
        merged, _ = trial.merge([call.arguments, longer], [spec.rows(call.arguments)] * 2)
        rows = [spec.rows(call.arguments)] * 2
        parts = spec.split(run(module, call.method, merged), rows, [], None)
    except Exception as why:  # noqa: BLE001 - that it fails is the finding
        log.debug("padding refused", extra={"argument": argument, "why": repr(why)[:200]})
        return None
    grown = dict(tensors(call.result))
    crops = []
    for path, tensor in tensors(parts[0]):
        want = grown.get(path)
        if want is None or want.dim() != tensor.dim():
            return None
        dims = [dim for dim in range(tensor.dim()) if tensor.shape[dim] != want.shape[dim]]
        if len(dims) > 1 or (dims and tensor.shape[dims[0]] != text.shape[1] + PAD_BY):
            return None
        crops += [(path, dim) for dim in dims]
    return replace(spec, padding=replace(padding, crops=tuple(crops)))


def _key(spec: BatchSpec, call: Taped) -> object:
    try:
        return spec.key(call.arguments, SharedTensors())
    except Unmergeable:
        return None


def _merge_fault(module: torch.nn.Module, spec: BatchSpec, calls: list[Taped]) -> str:
    """What is wrong with the merged answer to `calls`; empty when each member gets what it gets alone."""
    shared = SharedTensors()
    arguments = [clone(call.arguments) for call in calls]
    if len({spec.key(each, shared) for each in arguments}) > 1:
        return "calls differ in what must be shared"
    try:
        rows = [spec.rows(each) for each in arguments]
        merged, padded = spec.merge(arguments, rows)
        parts = spec.split(run(module, calls[0].method, merged), rows, arguments, padded)
    except Exception as error:  # noqa: BLE001 - that it fails is the finding
        return f"a merged call failed: {words_of(error)}"[:300]
    worst = max(_visible_error(part, call.result) for part, call in zip(parts, calls, strict=True))
    limit = max((TOLERANCE.get(tensor.dtype, 0.0) for _, tensor in tensors(calls[0].result)), default=0.0)
    return (
        ""
        if worst <= limit
        else f"a merged call answers differently (relative {worst:.1e}, allowed {limit:.0e})"
    )


def _visible_error(part: Any, alone: Any) -> float:
    """Relative error over what a merged call can hand out; leaves that only the lone call has are left out."""
    have = dict(tensors(part))
    want = {path: tensor for path, tensor in tensors(alone) if path in have}
    return max((relative_error(have[path], tensor) for path, tensor in want.items()), default=float("inf"))
