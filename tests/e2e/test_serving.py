"""From `kubectl apply` to a picture."""

from __future__ import annotations

import pytest

from stage_api import names
from support.live_client import PROMPT, Client
from support.live_cluster import kubectl, needs_cluster
from support.live_stage import READY_S, StageMaker, example

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), needs_cluster]


def test_an_applied_example_draws_what_it_is_asked_for_through_its_service(
    client: Client, make_stage: StageMaker
) -> None:
    stage = make_stage("shapes", example())
    stage.await_ready(within_s=2 * READY_S)  # the nodes may still have to pull the image
    assert client.ask(stage.url).shows(PROMPT)
    assert kubectl("get", names.SHORT_NAME, f"--namespace={stage.namespace}").split()[:2]
