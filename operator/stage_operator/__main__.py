"""`python -m stage_operator`: run one replica of the operator until SIGTERM.

Exit codes: 0 after an orderly end, 64 for wrong settings, 1 for anything that a new process may do better.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence

from stage_api.errors import SpecError
from stage_api.outcome import ExitCode
from stage_operator import settings
from stage_operator.assemble import serve
from stage_operator.decide.plan import plan
from stage_operator.loop.reconcile import Planner
from stage_operator.telemetry import log as logs

log = logging.getLogger("stage_operator")


def main(argv: Sequence[str], planner: Planner) -> int:
    """Run until told to stop; the exit code."""
    logs.configure()
    try:
        found = settings.load(argv)
        logs.configure(found.log_level)
        asyncio.run(serve(found, planner))
    except SpecError as error:
        for fault in error.faults:
            log.error("wrong settings", extra={"fault": str(fault)})
        return int(ExitCode.CONFIG)
    except Exception:
        log.exception("the operator ends")
        return 1
    log.info("the operator ends as it was told to")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], plan))
