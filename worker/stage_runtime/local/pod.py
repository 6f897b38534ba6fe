"""A pod of a local run: the command that runs on a cluster, as a child of this process."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from stage_runtime.exit import ENV_TERMINATION_LOG
from stage_runtime.local.handover import Handover
from stage_runtime.local.parent_link import ParentEnd
from stage_runtime.processes.child import Child


def start_pod(
    handover: Handover, parent_link: ParentEnd, environ: Mapping[str, str], *, host: str, port: int | None
) -> Child:
    """Start it. A terminal's Ctrl-C doesn't reach it: it comes to this process, which passes it on once."""
    handover.forget_report()
    listen = ("--host", host, *(("--port", str(port)) if port is not None else ()))
    child = Child(
        [
            *(sys.executable, "-m", "stage_runtime", "serve", "--config", handover.config_path),
            *(*listen, "--parent-link", str(parent_link.fd)),
        ],
        {**environ, ENV_TERMINATION_LOG: handover.report_path},
        keep=(parent_link.fd,),
        own_group=True,
    )
    parent_link.handed_over()
    return child
