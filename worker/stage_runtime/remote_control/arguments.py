"""What `omnistage control` takes. Importing it is quick."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

ACTIONS: Final = ("health", "pause", "resume", "sleep", "wake", "profile-start", "profile-stop")


def add_arguments(control: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    control.add_argument(
        "stage", metavar="STAGE", help="name of a stage that `omnistage run` or a cluster serves"
    )
    control.add_argument("action", metavar="ACTION", choices=ACTIONS, help=", ".join(ACTIONS))
    control.add_argument("--replica", metavar="N", type=int, help="only this one (all)")
    control.add_argument(
        "--level", metavar="1|2", type=int, choices=(1, 2), default=1, help="of sleep (%(default)s)"
    )
    control.add_argument(
        "-o", "--output", metavar="DIR", type=Path, default=Path(), help="folder for traces (this one)"
    )
    on_cluster = control.add_argument_group("on a cluster", "any of these says that the stage is there")
    on_cluster.add_argument("-n", "--namespace", metavar="N", help="of the stage (the context's)")
    on_cluster.add_argument("--context", metavar="C", help="of the kubeconfig (the current one)")
    on_cluster.add_argument("--kubeconfig", metavar="FILE", help="as kubectl has it")
    on_cluster.add_argument(
        "--token-file", metavar="FILE", type=Path, help="token, where the stage's Secret may not be read"
    )
