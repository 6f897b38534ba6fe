"""Every pipeline class of diffusers that the tiny components can make: alone, interleaved, its steps and its previews.

    python tests/sweeps/pipelines.py [NAME …]

Those of `zoo_pipelines` are saved and come in through the stage's own registry and loader, with the request that a
stage probes itself with. Prints a line a class: what it was made from; whether a request alone is plain diffusers' to
the last bit, and three interleaved ones each; whether progress is 1, 2, … of what was asked for; whether previews are
an interrupted plain run's, or are none; whether the output has the size asked for; and why something is not. Ends with
1 if a class that draws isn't equal alone.
"""

from __future__ import annotations

import inspect
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / part) for part in ("crds", "worker", "tests")]

import diffusers
import numpy as np
import torch

from stage_runtime.core.errors import StageError
from stage_runtime.core.outcome import Completed, Output, Progressed
from stage_runtime.pipelines.arguments import small_arguments
from stage_runtime.pipelines.loader import load
from stage_runtime.pipelines.registry import resolve
from stage_runtime.runner.output import PIXELS
from support.hub_stage import HubStage, ask, plain, relative
from support.interrupted import interrupted
from support.tiny_models import fill_weights, reference_arguments
from support.tiny_pipelines import BUILDERS
from support.zoo_pipelines import ZOO

STEPS = 4
STEPS_OF = {"sana_sprint": 2, "text_to_video_zero": 50}
"""Of those that can't be made in STEPS."""
ROUNDING = 1e-4
SCHEDULERS = ("HeunDiscreteScheduler", "KDPM2AncestralDiscreteScheduler")
"""Put on what takes them, as classes of their own: their turns have two steps."""


class Row(NamedTuple):
    """What was found of one class."""

    name: str
    source: str
    alone: str = "-"
    together: str = "-"
    steps: str = "-"
    previews: str = "-"
    size: str = "-"
    why: str = ""


def classes(wanted: list[str]) -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """(name, made from, pipeline, arguments), of each class that some tiny pipeline has all components of."""
    tiny = {}
    for source, build in BUILDERS.items():
        tiny[source] = build()
        for name, part in tiny[source].components.items():
            if isinstance(part, torch.nn.Module):
                fill_weights(part, name)
    kinds = {
        name: kind
        for name in dir(diffusers)
        if isinstance(kind := getattr(diffusers, name), type)
        and issubclass(kind, diffusers.DiffusionPipeline)
    }
    for name, kind in sorted(kinds.items()):
        if kind is diffusers.DiffusionPipeline or (wanted and name not in wanted):
            continue
        for source, parts in tiny.items():
            pipeline = made(kind, parts.components)
            if pipeline is None:
                continue
            taken = inspect.signature(kind.__call__).parameters
            base = {key: value for key, value in reference_arguments(source).items() if key in taken}
            base.pop("num_inference_steps", None)
            yield name, source, pipeline, base
            if name == "StableDiffusionXLPipeline":
                for scheduler in SCHEDULERS:
                    other = made(kind, parts.components)
                    other.scheduler = getattr(diffusers, scheduler).from_config(parts.scheduler.config)
                    yield name, scheduler.removesuffix("DiscreteScheduler"), other, base


def loaded(build: Callable[[], Any], folder: Path) -> tuple[Any, dict[str, Any]]:
    """A pipeline that was saved, as a stage loads it, and the arguments of a stage's small request."""
    saved = build()
    for name, part in saved.components.items():
        if isinstance(part, torch.nn.Module):
            fill_weights(part, name)
    saved.save_pretrained(folder)
    model = resolve(folder)
    arguments = dict(small_arguments(model, "a cat", STEPS))
    del arguments["prompt"], arguments[model.record.steps_argument]
    return load(model, dtype=torch.float32, device=torch.device("cpu")), arguments


def of_checkpoint(name: str) -> Row:
    """The row of one that comes from a checkpoint."""
    row = Row(name, "checkpoint")
    with tempfile.TemporaryDirectory() as folder:
        try:
            pipeline, base = loaded(ZOO[name], Path(folder))
        except StageError as error:
            return row._replace(why=f"refused: {error}")
        except Exception as error:  # noqa: BLE001 - what a load may not raise is what is looked for
            return row._replace(alone="RAW", why=f"{type(error).__name__}: {error}")
        return tried(name, "checkpoint", pipeline, base)


def made(kind: Any, components: dict[str, Any]) -> Any:
    """A pipeline of these components, if they are all that it needs, and of the types that it wants."""
    needed, _ = kind._get_signature_keys(kind)
    types = kind._get_signature_types()
    given = {}
    for name in needed:
        part = components.get(name)
        optional = name in kind._optional_components
        if part is None and not optional and name not in components:
            return None
        allowed = tuple(one for one in types.get(name, ()) for one in (get_args(one) or (one,)))
        allowed = tuple(one for one in allowed if isinstance(one, type))
        is_model = isinstance(part, torch.nn.Module)
        if part is not None and is_model and allowed and not isinstance(part, allowed):
            return None
        given[name] = part
    try:
        pipeline = kind(**given)
    except Exception:  # noqa: BLE001 - the components are another class's
        return None
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def tried(name: str, source: str, pipeline: Any, base: dict[str, Any]) -> Row:
    """The row of a class."""
    row = Row(name, source)
    try:
        stage = HubStage.of(pipeline, base, output=PIXELS)
    except StageError as error:
        return row._replace(why=f"refused: {error}")
    except Exception as error:  # noqa: BLE001 - what a load may not raise is what is looked for
        return row._replace(alone="RAW", why=f"{type(error).__name__}: {error}")
    try:
        return checked(row, stage, pipeline, base)
    except Exception as error:  # noqa: BLE001 - one class's trouble is a line of the table
        return row._replace(alone="RAW", why=f"{type(error).__name__}: {error}")


def checked(row: Row, stage: HubStage, pipeline: Any, base: dict[str, Any]) -> Row:
    """Run it alone and interleaved, and compare."""
    why = "; ".join(f"{part.name}: {part.reason}" for part in stage.capability.components if part.reason)
    count = STEPS_OF.get(row.name, STEPS)
    more = 0 if count < STEPS else 1
    request = ask(base, "a", "a cat", steps=count, seed=1)
    latents = HubStage.of(pipeline, base)
    latents.arrive(request)
    got = latents.outputs().get("a")
    equal = got is not None and np.array_equal(got, plain(pipeline, request), equal_nan=True)
    told = [one.step for one in latents.told if isinstance(one, Progressed)]
    ended = [one.steps for one in latents.told if isinstance(one, Completed)]
    several = [ask(base, n, n, steps=count + i * more, seed=i) for i, n in enumerate(("b", "c", "d"))]
    latents.told.clear()
    latents.arrive(*several)
    outs = latents.outputs()
    gaps = [relative(outs[one.request_id], plain(pipeline, one)) for one in several if one.request_id in outs]
    together = max(gaps) if len(gaps) == len(several) else float("inf")
    return row._replace(
        alone="equal" if equal else "DIFFERS",
        together="equal" if together == 0 else f"{together:.0e}" + ("" if together <= ROUNDING else " !"),
        steps="ok" if told == list(range(1, count)) and ended == [count] else f"{told}/{ended}",
        previews=previews_of(pipeline, base, stage, count),
        size=size_of(base, stage, count),
        why=(stage.capability.previews_reason or why)[:110],
    )


def previews_of(pipeline: Any, base: dict[str, Any], stage: HubStage, count: int) -> str:
    """Are previews an interrupted plain run's?"""
    if not stage.capability.previews:
        return "none"
    request = ask(base, "p", "a cat", steps=count, seed=1, preview_steps=(count // 2,))
    stage.arrive(request)
    stage.run()
    shown = [one.preview for one in stage.told if isinstance(one, Progressed) and one.preview]
    if not shown:
        return "MISSING"
    if not stage.capability.early_stop:
        return "shown"
    generator = PIXELS.convert(
        _Plain(interrupted(pipeline, request, count // 2), shown[0].modality.value), None
    )
    return "equal" if generator.data == shown[0].data else "DIFFERS"


def size_of(base: dict[str, Any], stage: HubStage, count: int) -> str:
    """Has the output the size asked for?"""
    stage.told.clear()
    stage.arrive(ask(base, "s", "a cat", steps=count, seed=1))
    output = getattr(stage.run().get("s"), "output", None)
    if not isinstance(output, Output) or output.modality.value == "audio":
        return "-"
    asked = [base.get(name) for name in ("height", "width")]
    return "ok" if None in asked or list(output.shape[-3:-1]) == asked else f"{output.shape}"


class _Plain:
    """A plain result, where the runtime looks for one."""

    def __init__(self, value: np.ndarray, modality: str) -> None:
        setattr(self, {"image": "images", "video": "frames", "audio": "audios"}[modality], value)


def rows(wanted: list[str]) -> Iterator[Row]:
    """The row of each class."""
    for name in ZOO:
        if not wanted or name in wanted:
            yield of_checkpoint(name)
    if set(wanted) <= set(ZOO) and wanted:
        return
    for name, source, pipeline, base in classes(wanted):
        yield tried(name, source, pipeline, base)


def main() -> int:
    """Print the table; 1 if a class that draws isn't plain diffusers'."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    diffusers.utils.logging.disable_progress_bar()
    bad = 0
    print(f"{'class':44} {'made from':20} {'alone':8} {'three':8} {'steps':6} {'previews':9} {'size':6} why")
    for row in rows(sys.argv[1:]):
        bad += (
            row.alone in ("DIFFERS", "RAW") or row.previews in ("DIFFERS", "MISSING") or "!" in row.together
        ) or row.size not in ("ok", "-")
        print(
            f"{row.name:44} {row.source:20} {row.alone:8} {row.together:8} {row.steps:6} {row.previews:9} "
            f"{row.size:6} {row.why[:200]}",
            flush=True,
        )
    print(f"{bad} not as they should be")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
