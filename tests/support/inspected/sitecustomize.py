"""Gives a test a hand in its child process: on SIGUSR1 it tells what it has loaded, on SIGUSR2 its device fails.

Python imports this module at its start when its folder is on the path. The handlers run in the main thread.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn


def _tell(*_: object) -> None:
    distributed = sys.modules.get("torch.distributed")
    facts = {
        "modules": sorted(name for name in list(sys.modules) if "." not in name),
        "distributed": bool(distributed and distributed.is_available() and distributed.is_initialized()),
    }
    target = Path(os.environ["OMNISTAGE_TEST_FACTS"], f"{os.getpid()}.json")
    unfinished = target.with_suffix(".part")
    unfinished.write_text(json.dumps(facts))
    unfinished.rename(target)


def _poison(*_: object) -> None:
    from stage_runtime.core.errors import DeviceLost
    from stage_runtime.worker.worker import Worker

    def tick(_: Worker) -> NoReturn:
        raise DeviceLost("poisoned by a test")

    Worker.tick = tick  # type: ignore[method-assign]


if "OMNISTAGE_TEST_FACTS" in os.environ:
    signal.signal(signal.SIGUSR1, _tell)
    signal.signal(signal.SIGUSR2, _poison)
