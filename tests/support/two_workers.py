"""How tests share the cores: files go to the workers of pytest-xdist whole, and some tests run beside no other.

`@pytest.mark.alone("why")` is for what another worker would disturb: a test that measures, or one that looks at the
whole machine. Without pytest-xdist, and with one worker, everything runs in its order and nothing here does anything.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

ON_A_CLUSTER = ("tests/cluster/", "tests/e2e/")
"""They share one cluster, so one worker has them all."""
WHOLE_FOLDERS = ("tests/device/parallel/",)
"""Their files share processes, too."""
IMAGES = "tests/cluster/test_images.py"
"""They need no cluster. Built first and beside other tests, they are there when the cluster's turn comes."""
SLOWEST_FIRST = (IMAGES, "tests/device/", "tests/integration/", "tests/contract/", "tests/monitoring/")
"""What is quick comes last, so that neither worker waits long for the other's last file."""


def pytest_configure(config: pytest.Config) -> None:
    """Take files in the order of `pytest_collection_modifyitems`."""
    config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow ones first, then quick ones; then what runs alone, and last what needs a cluster, which is a share of it."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> tuple[bool, bool, bool, bool]:
    return (
        item.get_closest_marker("cluster") is not None,
        item.get_closest_marker("alone") is not None,
        not item.nodeid.startswith(SLOWEST_FIRST),
        not item.nodeid.startswith(IMAGES),
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """A worker gets a file whole, so that what its tests share is made once."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(ON_A_CLUSTER) and not nodeid.startswith(IMAGES):
                return ON_A_CLUSTER[0]
            folder = next((one for one in WHOLE_FOLDERS if nodeid.startswith(one)), None)
            return folder or nodeid.partition("::")[0]

    return ByFile(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let no test run beside one that runs alone."""
    workers = getattr(item.config, "workerinput", {}).get("workercount", 1)
    if workers == 1:
        return (yield)
    alone = any(item.get_closest_marker(name) for name in ("alone", "cluster"))
    # All workers' temporary folders lie in the run's.
    factory: pytest.TempPathFactory = item.config._tmp_path_factory  # type: ignore[attr-defined]
    with turn(factory.getbasetemp().parent, alone=alone):
        return (yield)


@contextmanager
def turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Between these two locks runs one test alone, or one of each worker."""
    with ExitStack() as stack:
        # Who waits to run alone keeps the door, or those who run together would never leave a gap.
        with _locked(folder / "door", fcntl.LOCK_EX):
            stack.enter_context(_locked(folder / "room", fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        yield


@contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, how)
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)  # closing isn't enough while a forked child has it, too
        os.close(handle)
