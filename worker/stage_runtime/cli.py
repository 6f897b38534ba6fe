"""The `omnistage` command: arguments in, text and an exit code out. What it does is done elsewhere.

Importing it is quick: each command imports what it needs.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stage_api.devices import Device

if TYPE_CHECKING:
    from stage_api.errors import SpecError

USAGE: Final = 2
"""Exit code for arguments that make no sense, as argparse has it."""
INTERRUPTED: Final = 130

_SUFFIX: Final = {"png": "png", "jpeg": "jpg", "webp": "webp"}
_SLUG_CHARS: Final = 60
_MAX_PORT: Final = 65_535


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.command(arguments))
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="omnistage",
        description="Serve diffusion models as stages.",
        epilog="omnistage COMMAND -h tells more.",
    )
    parser.add_argument("--version", action=_Version, help="print the version")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="serve a stage on this machine until Ctrl-C")
    run.add_argument("manifest", metavar="MANIFEST", type=Path)
    run.add_argument("--host", metavar="H", default="127.0.0.1", help="address to listen on (%(default)s)")
    run.add_argument("--port", metavar="P", type=_port, help="port (the manifest's); 0 is any free one")
    run.set_defaults(command=_run)

    generate = commands.add_parser("generate", help="draw pictures without a server")
    _add_generate(generate)
    generate.set_defaults(command=_generate)

    validate = commands.add_parser("validate", help="check manifests, and name every fault")
    validate.add_argument("manifests", metavar="MANIFEST", type=Path, nargs="+")
    validate.set_defaults(command=_validate)

    topology = commands.add_parser("topology", help="print which rank does what")
    topology.add_argument("manifest", metavar="MANIFEST", type=Path)
    topology.set_defaults(command=_topology)
    return parser


def _add_generate(generate: argparse.ArgumentParser) -> None:
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


def _run(arguments: argparse.Namespace) -> int:
    from stage_api.errors import SpecError
    from stage_runtime.local.run import run

    try:
        return run(arguments.manifest, host=arguments.host, port=arguments.port)
    except SpecError as error:
        return _refuse(arguments.manifest, error)
    except OSError as error:  # no process, no memory for its config
        return _fail(error.strerror or str(error), 1)


def _validate(arguments: argparse.Namespace) -> int:
    from stage_api.errors import SpecError
    from stage_runtime.local.manifest import checked

    worst = 0
    for path in arguments.manifests:
        try:
            stages = checked(path)
        except SpecError as error:
            worst = _refuse(path, error)
        else:
            print(f"{path}: {', '.join(stage.metadata.name for stage in stages)}: ok")
    return worst


def _topology(arguments: argparse.Namespace) -> int:
    from stage_api.config import StageConfig
    from stage_api.errors import SpecError
    from stage_api.manifest import load_manifest

    try:
        stages = load_manifest(arguments.manifest)
    except SpecError as error:
        return _refuse(arguments.manifest, error)
    for place, stage in enumerate(stages):
        topology = StageConfig.from_stage(stage).topology()
        ranks, pods = _count(topology.world_size, "rank"), _count(topology.pods, "pod")
        print(f"{chr(10) if place else ''}{stage.metadata.name}: {ranks} in {pods}, digest {topology.digest}")
        print(topology.rank_table())
    return 0


def _generate(arguments: argparse.Namespace) -> int:
    from stage_api.errors import SpecError
    from stage_runtime import log
    from stage_runtime.core.errors import InvalidRequest, StageError
    from stage_runtime.exit import exit_code_of

    # Nobody waits for anything but the pictures: Ctrl-C is the end, also in the middle of loading.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    log.configure(arguments.model, level="WARNING")
    # Without a traceback an engine's death is told in full by its error, below.
    logging.getLogger("stage_runtime.engine.engine").addFilter(lambda record: record.exc_info is not None)
    try:
        return _draw(arguments)
    except SpecError as error:
        return _refuse(arguments.model, error)
    except InvalidRequest as error:
        return _fail(str(error), USAGE)
    except OSError as error:
        return _fail(f"{error.filename or arguments.output}: {error.strerror or error}", 1)
    except StageError as error:
        return _fail(str(error), exit_code_of(error))


def _draw(arguments: argparse.Namespace) -> int:
    from stage_runtime.omni import Omni

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
        pictures = omni.generate(
            arguments.prompts,
            negative_prompt=arguments.negative_prompt,
            width=width,
            height=height,
            num_inference_steps=arguments.steps,
            guidance_scale=arguments.guidance,
            seed=arguments.seed,
            num_images_per_prompt=arguments.n,
            progress=sys.stderr.isatty(),
        )
    folder: Path = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    prompts = [prompt for prompt in arguments.prompts for _ in range(arguments.n)]
    first = next_number(folder)
    for number, (prompt, picture) in enumerate(zip(prompts, pictures, strict=True), start=first):
        path = folder / f"{number:04}-{slug(prompt)}.{_SUFFIX[arguments.format]}"
        if arguments.format == "png":
            picture.save(path)
        else:
            picture.save(path, quality=arguments.quality)
        print(f"{path}  seed {picture.info['seed']}  {prompt!r}")
    return 0


def next_number(folder: Path) -> int:
    """One more than the highest number of a picture in the folder, so that nothing is overwritten."""
    numbers = [int(digits) for path in folder.iterdir() if (digits := path.name.split("-")[0]).isdecimal()]
    return max(numbers, default=0) + 1


def slug(prompt: str) -> str:
    """A prompt as a part of a file name: lower-case letters, digits and hyphens of ASCII, not too many."""
    slug = re.sub(r"[^a-z0-9]+", "-", prompt.lower()).strip("-")[:_SLUG_CHARS].strip("-")
    return slug or "picture"


def _folder(text: str) -> Path:
    """A folder that is there or can be made: to learn otherwise once all is drawn would be late."""
    path = Path(text)
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not (text and there.is_dir() and os.access(there, os.W_OK)):
        raise argparse.ArgumentTypeError(f"expected a folder that can be written to, got {text!r}")
    return path


def _size(text: str) -> tuple[int, int]:
    width, cross, height = text.lower().partition("x")
    if not (cross and width.isdecimal() and height.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected WIDTHxHEIGHT, as 64x64, got {text!r}")
    return int(width), int(height)


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) <= _MAX_PORT):
        raise argparse.ArgumentTypeError(f"expected 0..{_MAX_PORT}, got {text!r}")
    return int(text)


def _quality(text: str) -> int:
    if not (text.isdecimal() and int(text) <= 100):
        raise argparse.ArgumentTypeError(f"expected 0..100, got {text!r}")
    return int(text)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _refuse(source: object, error: SpecError) -> int:
    """Every fault on a line of its own, with where it is."""
    from stage_api.outcome import ExitCode

    for fault in error.faults:
        where = "" if fault.path == str(source) else f"{source}: "
        print(f"{where}{fault}", file=sys.stderr)
    return int(ExitCode.CONFIG)


def _fail(message: str, code: int) -> int:
    print(f"omnistage: {message}", file=sys.stderr)
    return code


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import stage_runtime

        print(f"omnistage {stage_runtime.__version__}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
