"""The `omnistage` command: arguments in, text and an exit code out. What it does is done elsewhere.

Importing it is quick: each command imports what it needs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stage_runtime import generate
from stage_runtime.remote_control.arguments import add_arguments as add_control_arguments

if TYPE_CHECKING:
    from stage_api.errors import SpecError

USAGE: Final = 2
"""Exit code for arguments that make no sense, as argparse has it."""
INTERRUPTED: Final = 130

_MAX_PORT: Final = 65_535


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        code = int(arguments.command(arguments))
        _flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # every command deals with its own files
        code = _fail(f"standard output: {error.strerror or error}", 1)
    if code:
        _give_up_broken_output()
    return code


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
    run.add_argument(
        "--host", metavar="H", type=_host, default="127.0.0.1", help="address to listen on (%(default)s)"
    )
    run.add_argument("--port", metavar="P", type=_port, help="port (the manifest's); 0 is any free one")
    run.set_defaults(command=_run)

    drawing = commands.add_parser("generate", help="draw pictures without a server")
    generate.add_arguments(drawing)
    drawing.set_defaults(command=_generate)

    steering = commands.add_parser("control", help="pause, put to sleep, wake or profile a stage that runs")
    add_control_arguments(steering)
    steering.set_defaults(command=_control)

    validate = commands.add_parser("validate", help="check manifests, and name every fault")
    validate.add_argument("manifests", metavar="MANIFEST", type=Path, nargs="+")
    validate.set_defaults(command=_validate)

    topology = commands.add_parser("topology", help="print which rank does what")
    topology.add_argument("manifest", metavar="MANIFEST", type=Path)
    topology.set_defaults(command=_topology)
    return parser


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
    from stage_runtime.core.errors import InvalidRequest, StageError
    from stage_runtime.exit import exit_code_of

    try:
        generate.generate(arguments)
    except SpecError as error:
        return _refuse(arguments.model, error)
    except InvalidRequest as error:
        return _fail(generate.in_options(error), USAGE)
    except StageError as error:
        return _fail(str(error), exit_code_of(error))
    except OSError as error:
        return _fail(f"{error.filename or arguments.output}: {error.strerror or error}", 1)
    return 0


def _control(arguments: argparse.Namespace) -> int:
    from stage_runtime.core.errors import StageError
    from stage_runtime.remote_control.command import control

    try:
        return control(arguments)
    except StageError as error:
        return _fail(str(error), 1)
    except OSError as error:
        return _fail(f"{error.filename or arguments.stage}: {error.strerror or error}", 1)


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) <= _MAX_PORT):
        raise argparse.ArgumentTypeError(f"expected 0..{_MAX_PORT}, got {text!r}")
    return int(text)


def _host(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("expected an address or a name of this machine, got nothing")
    return text


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


def _flush() -> None:
    if sys.stdout is not None:  # as it is where it was closed before the start
        sys.stdout.flush()


def _give_up_broken_output() -> None:
    """What could not be written is not tried again at the end of the process, where it would change the exit code."""
    try:
        _flush()
    except OSError:
        with suppress(OSError):  # it may be no file of the system's at all
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
