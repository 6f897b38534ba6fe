"""`omnistage generate`: pictures into files, each as soon as it is drawn."""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stage_api.devices import Device

if TYPE_CHECKING:
    from stage_runtime.core.errors import InvalidRequest

_SUFFIX: Final = {"png": "png", "jpeg": "jpg", "webp": "webp"}
_SLUG_CHARS: Final = 60
_OPTIONS: Final[Mapping[str, str]] = {
    "prompt": "PROMPT",
    "negative_prompt": "--negative-prompt",
    "num_inference_steps": "--steps",
    "guidance_scale": "--guidance",
    "seed": "--seed",
    "num_images_per_prompt": "--n",
}
"""What a person wrote, by the name that `Omni` has for it."""


def add_arguments(generate: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    generate.add_argument(
        "model",
        metavar="MODEL_OR_MANIFEST",
        help="name of an embedded model, a folder in the diffusers format, or a manifest",
    )
    generate.add_argument("prompts", metavar="PROMPT", nargs="+")
    generate.add_argument(
        "-o", "--output", metavar="DIR", type=_folder, required=True, help="folder for the pictures"
    )
    generate.add_argument("--steps", metavar="N", type=int, help="denoising steps (the model's)")
    generate.add_argument("--guidance", metavar="X", type=float, help="guidance scale (the model's)")
    generate.add_argument("--negative-prompt", metavar="TEXT", help="what the pictures should not show")
    generate.add_argument(
        "--size", metavar="WxH", type=_size, default=(None, None), help="in pixels (the model's)"
    )
    generate.add_argument(
        "--seed", metavar="N", type=int, help="seed of the first picture; each next one has 1 more"
    )
    generate.add_argument(
        "--n", metavar="N", type=int, default=1, help="pictures of each prompt (%(default)s)"
    )
    generate.add_argument(
        "--format", choices=tuple(_SUFFIX), default="png", help="of the files (%(default)s)"
    )
    generate.add_argument("--quality", metavar="0..100", type=_quality, default=95, help="of jpeg and webp")
    generate.add_argument(
        "--max-num-seqs", metavar="N", type=int, help="requests that run together (the manifest's, or 1)"
    )
    generate.add_argument("--mode", choices=("step", "request"), help="when a request may join others")
    generate.add_argument("--dtype", help="float32, bfloat16 or float16 (the manifest's, or float32)")
    generate.add_argument("--device", help=f"{', '.join(Device)} (the manifest's, or auto)")


def generate(arguments: argparse.Namespace) -> None:
    """Draw and save.

    Raises: SpecError; InvalidRequest; StageError; OSError with the file that can't be written, or with standard output.
    """
    from stage_runtime import log

    # Nobody waits for anything but the pictures: Ctrl-C is the end, also in the middle of loading.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    log.configure(arguments.model, level="WARNING")
    # Without a traceback an engine's death is told in full by its error.
    logging.getLogger("stage_runtime.engine.engine").addFilter(lambda record: record.exc_info is not None)

    from stage_runtime.omni import Omni

    folder: Path = arguments.output
    width, height = arguments.size
    print(f"loading {arguments.model}", file=sys.stderr)
    with Omni(
        arguments.model,
        max_num_seqs=arguments.max_num_seqs,
        mode=arguments.mode,
        dtype=arguments.dtype,
        device=arguments.device,
        load=False,
    ) as omni:
        files = _Files(arguments, folder)
        omni.generate(
            arguments.prompts,
            negative_prompt=arguments.negative_prompt,
            width=width,
            height=height,
            num_inference_steps=arguments.steps,
            guidance_scale=arguments.guidance,
            seed=arguments.seed,
            num_images_per_prompt=arguments.n,
            progress=sys.stderr.isatty(),
            on_picture=files.save,
        )
    files.check_told()


def in_options(error: InvalidRequest) -> str:
    """The message of a refused argument under the name that a person wrote."""
    if error.field in ("width", "height"):
        return f"--size: {error}"
    option = _OPTIONS.get(error.field or "")
    return str(error) if option is None else str(error).replace(f"{error.field}:", f"{option}:", 1)


def next_number(folder: Path) -> int:
    """One more than the highest number of a picture in the folder, so that nothing is overwritten."""
    numbers = [int(digits) for path in folder.iterdir() if (digits := path.name.split("-")[0]).isdecimal()]
    return max(numbers, default=0) + 1


def slug(prompt: str) -> str:
    """A prompt as a part of a file name: lower-case letters, digits and hyphens of ASCII, not too many."""
    slug = re.sub(r"[^a-z0-9]+", "-", prompt.lower()).strip("-")[:_SLUG_CHARS].strip("-")
    return slug or "picture"


class _Files:
    """Saves each picture, and tells of it as long as anybody listens."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._arguments = arguments
        self._folder = folder
        self._prompts = [prompt for prompt in arguments.prompts for _ in range(max(arguments.n, 0))]
        self._first: int | None = None
        self._untold: OSError | None = None

    def save(self, place: int, picture: Any) -> None:
        """Save it under its own number, whatever order they come in."""
        if self._first is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._first = next_number(self._folder)
        prompt, suffix = self._prompts[place], _SUFFIX[self._arguments.format]
        path = self._folder / f"{self._first + place:04}-{slug(prompt)}.{suffix}"
        if self._arguments.format == "png":
            picture.save(path)
        else:
            picture.save(path, quality=self._arguments.quality)
        self._tell(f"{path}  seed {picture.info['seed']}  {prompt!r}")

    def check_told(self) -> None:
        """Raises: OSError if the pictures are there but their names could not be told."""
        if self._untold is not None:
            raise self._untold

    def _tell(self, line: str) -> None:
        """NB: nobody who listens is no reason to lose a picture."""
        if self._untold is None:
            try:
                print(line, flush=True)
            except OSError as error:
                self._untold = OSError(error.errno, error.strerror, "standard output")


def _folder(text: str) -> Path:
    """A folder that is there or can be made: to learn otherwise once all is drawn would be late."""
    path = Path(text)
    there = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if not (text and there.is_dir() and os.access(there, os.W_OK)):
        raise argparse.ArgumentTypeError(f"expected a folder that can be written to, got {text!r}")
    return path


def _size(text: str) -> tuple[int, int]:
    width, cross, height = text.lower().partition("x")
    if not (cross and width.isdecimal() and height.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected WIDTHxHEIGHT, as 64x64, got {text!r}")
    return int(width), int(height)


def _quality(text: str) -> int:
    if not (text.isdecimal() and int(text) <= 100):
        raise argparse.ArgumentTypeError(f"expected 0..100, got {text!r}")
    return int(text)
