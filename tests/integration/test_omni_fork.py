"""`Omni` and fork: the fork is told that it has nothing of it, and its end does no harm to who forked."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from support.stage_process import PATIENCE_S

pytestmark = pytest.mark.timeout(300)

PROGRAM = """
import json, os, sys
from stage_runtime import Omni
from stage_runtime.core.errors import StageError

def draw():
    return len(omni.generate("a red circle", num_inference_steps=2))

def error_of(work):
    try:
        work()
    except StageError as error:
        return type(error).__name__, str(error)

omni = Omni("shapes", **json.loads(sys.argv[1]))
draw()
read, write = os.pipe()
fork = os.fork()
if fork == 0:
    seen = [error_of(draw), error_of(omni.health)]
    omni.close()
    os.write(write, json.dumps(seen).encode())
    sys.exit(0)
os.close(write)
with os.fdopen(read) as told:
    seen = json.load(told)
code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
print(json.dumps([seen, code, draw(), os.getpid()]))
omni.close()
"""


@pytest.mark.parametrize(
    "options",
    [{"executor": "uni"}, {"executor": "mp"}, {"process": "child", "executor": "uni"}],
    ids=["uni", "mp", "child"],
)
def test_a_fork_is_refused_at_once_and_whoever_forked_draws_on(options: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen, code, drawn, pid = json.loads(done.stdout)
    why = f"this Omni lives in process {pid}; a fork has none of its threads: make one after it"
    assert seen == [["EngineDeadError", why]] * 2
    assert (code, drawn) == (0, 1)
