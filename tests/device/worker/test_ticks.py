"""A worker that plays requests to their end: each gives its result once, whoever else still goes on."""

from __future__ import annotations

import pytest
import torch

from stage_runtime.assemble_rank import assemble_worker
from stage_runtime.core.outcome import Computed
from stage_runtime.core.wave import NewRequest, Wave
from stage_runtime.runner.base import RunnerOptions
from stage_runtime.runner.output import Made
from support.hub_stage import ask
from support.toy_pipeline import BASE, toy


@pytest.mark.invariant("DIFF-RUNTIME-INV-001")
def test_a_request_that_is_computed_is_not_run_again_while_its_neighbour_goes_on() -> None:
    made: list[Made] = []
    worker = assemble_worker(
        lambda _device: toy(),
        lambda prompt, steps: {**BASE, "prompt": prompt, "num_inference_steps": steps},
        torch.device("cpu"),
        options=RunnerOptions(deliver=made.append),
    )
    requests = [ask(BASE, name, name, steps=steps, seed=1) for name, steps in (("short", 2), ("long", 5))]
    worker.submit(Wave(wave_id=1, new=tuple(NewRequest(request=one) for one in requests)))
    outcomes = [outcome for _ in range(10) for outcome in worker.tick()]
    computed = [outcome.request_id for outcome in outcomes if isinstance(outcome, Computed)]
    assert computed == ["short", "long"]
    assert [one.request_id for one in made] == ["short", "long"]
    worker.close()
