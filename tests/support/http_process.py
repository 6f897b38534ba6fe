"""`http_program` as a process, for tests that need several, or one with less than this one has."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
MAX_LOG_CHARS: Final = 1_000_000


@contextmanager
def serving(
    *, files: int = 1024, **options: object
) -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
    """A serving process with `http_program.Options`, and where it listens. `files`: how many it may open."""
    paths = os.pathsep.join(str(ROOT / part) for part in ("crds", "worker", "tests"))
    command = [sys.executable, "-m", "support.http_program", json.dumps(options)]
    process = subprocess.Popen(
        ["bash", "-c", f'ulimit -n {files}; exec "$@"', "-", *command],
        env=os.environ | {"PYTHONPATH": paths, "OMNISTAGE_TERMINATION_LOG": os.devnull},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said: list[str] = []
    with process.stderr as lines:
        found = next(filter(None, (re.search(r"http://([\d.]+):(\d+)", line) for line in lines)))
        # What it goes on to say must not fill the pipe.
        reader = threading.Thread(target=lambda: said.extend(lines), name="log")
        reader.start()
        try:
            yield process, (found[1], int(found[2]))
        finally:
            process.kill()
            process.wait()
            reader.join()
    assert sum(map(len, said)) < MAX_LOG_CHARS
