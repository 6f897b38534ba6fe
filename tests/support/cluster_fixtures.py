"""The cluster under test as a fixture: one for all tests, started when the first one asks for it.

`support.two_workers` has the tests that want it run after all others, so that nothing else runs beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from support.live_cluster import LiveCluster, running_cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[LiveCluster]:
    """Nodes, and a registry that they pull from."""
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def api_server(request: pytest.FixtureRequest) -> None:
    """KUBECONFIG names a throw-away cluster; it may have no node and no registry."""
    if not os.environ.get("KUBECONFIG"):
        request.getfixturevalue("cluster")
