"""A rank's command line and environment."""

from __future__ import annotations

import os
from pathlib import Path

from stage_runtime.executor.launch import Launch, rank_environ
from stage_runtime.rank import _parse
from stage_runtime.worker.threads import ENVIRONMENT
from support.far_pod import two_pods

CONFIG = two_pods(data=2, startup_s=9)
NEAR = Launch(engine="ipc:///tmp/e", config=CONFIG, epoch=2)
FAR = Launch(engine="tcp://h:1", config=CONFIG, epoch=2, life="1.2.abc", keys=Path("/k"))


def test_a_rank_reads_what_it_is_started_with() -> None:
    near, far = vars(_parse(NEAR.command(3, file_pipe=8)[3:])), vars(_parse(FAR.command(3)[3:]))
    shared = {
        "rank": 3,
        "epoch": 2,
        "digest": CONFIG.topology().digest,
        "startup": 9.0,
        "parent": os.getpid(),
    }
    assert near == shared | {"engine": "ipc:///tmp/e", "file_pipe": 8, "keys": None, "life": ""}
    assert far == shared | {"engine": "tcp://h:1", "file_pipe": None, "keys": Path("/k"), "life": "1.2.abc"}


def test_ranks_of_a_pod_share_out_its_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    assert rank_environ({}, 2)[ENVIRONMENT] == str(max(1, cores // 2))
    assert rank_environ({}, 1000)[ENVIRONMENT] == "1"


def test_who_has_decided_on_threads_is_heeded_and_one_rank_has_all() -> None:
    assert rank_environ({ENVIRONMENT: "7"}, 2)[ENVIRONMENT] == "7"
    assert ENVIRONMENT not in rank_environ({}, 1)
