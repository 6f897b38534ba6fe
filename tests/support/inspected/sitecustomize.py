"""Makes a child process of a test tell about itself: on SIGUSR1 it writes what it has loaded to a file.

Python imports this module at its start when its folder is on the path. The handler runs in the main thread.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path


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


if "OMNISTAGE_TEST_FACTS" in os.environ:
    signal.signal(signal.SIGUSR1, _tell)
