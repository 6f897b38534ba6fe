"""The file that a pod is handed, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stage_api import names
from stage_api.config import StageConfig, load, parse
from stage_api.errors import SpecError
from stage_api.manifest import parse_stage


def config(**spec: Any) -> StageConfig:
    return StageConfig.from_stage(
        parse_stage(
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "metadata": {"name": "flux", "namespace": "art"},
                "spec": {"model": {"source": {"embedded": "shapes"}}, **spec},
            }
        )
    )


def changed(**fields: Any) -> str:
    return json.dumps(json.loads(config().encode()) | fields)


def messages(data: str | bytes) -> list[str]:
    with pytest.raises(SpecError) as raised:
        parse(data)
    return [str(fault) for fault in raised.value.faults]


def test_a_config_comes_back_as_it_was() -> None:
    rich = config(
        engine={"mode": "request", "maxNumSeqs": 4, "warmup": [{"width": 64, "height": 64, "batch": 4}]},
        model={
            "source": {"hostPath": {"path": "/m"}},
            "defaults": {"guidanceScale": 3, "negativePrompt": "模"},
        },
        parallelism={"tensor": 2, "sequence": {"ring": 2}},
        topology={"ranksPerPod": 2},
    )
    assert parse(rich.encode()) == rich


def test_a_config_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / names.CONFIG_FILE
    path.write_text(config().encode(), encoding="utf-8")
    assert load(path) == config()


def test_equal_stages_give_equal_files() -> None:
    assert config(replicas=1).encode() == config(replicas=3).encode()


def test_a_pod_of_an_older_version_finds_no_field_that_nobody_asked_for() -> None:
    told = json.loads(config(engine={"maxNumSeqs": 4, "mode": "step"}).encode())
    assert told["engine"] == {"maxNumSeqs": 4}
    assert told["startup"] == told["drain"] == told["offload"] == told["parallelism"] == {}


def test_what_the_spec_leaves_open_is_filled_in() -> None:
    assert config().served_name == "flux"
    assert config(parallelism={"data": 4}).ranks_per_pod == 4


def test_the_topology_is_the_one_the_digest_names() -> None:
    made = config(parallelism={"cfg": 2})
    assert made.topology().digest == made.topology_digest


def test_another_topology_than_the_digest_names_is_refused() -> None:
    right = config().topology_digest
    assert messages(changed(topologyDigest="0" * 16)) == [f"topologyDigest: expected {right}, got {'0' * 16}"]


def test_another_contract_version_is_refused_before_anything_else() -> None:
    assert messages(changed(contractVersion=2, later=True)) == ["contractVersion: expected 1, got 2"]


def test_every_fault_of_a_config_is_named() -> None:
    assert messages(changed(ranksPerPod=0, later=True, drain={"admitSeconds": -1})) == [
        "drain.admitSeconds: expected an integer 0..300, got -1",
        "ranksPerPod: expected an integer 1..16, got 0",
        "later: expected one of the fields model, engine, parallelism, startup, drain, offload, vae, control, "
        "contractVersion, name, namespace, ranksPerPod, topologyDigest, got an unknown field",
    ]


def test_what_cannot_be_executed_is_named_beside_the_faults_of_a_config() -> None:
    wrong = changed(drain={"admitSeconds": -1}, parallelism={"tensor": 2})
    with pytest.raises(SpecError) as raised:
        parse(wrong, executable=True)
    assert [fault.path for fault in raised.value.faults] == ["drain.admitSeconds", "spec.parallelism.tensor"]


def test_what_cannot_be_executed_is_named_beside_another_topology() -> None:
    wrong = json.loads(config(parallelism={"tensor": 2}).encode()) | {"topologyDigest": "0"}
    with pytest.raises(SpecError) as raised:
        parse(json.dumps(wrong), executable=True)
    assert [fault.path for fault in raised.value.faults] == ["spec.parallelism.tensor", "topologyDigest"]


def test_a_layout_that_breaks_a_law_is_refused() -> None:
    assert messages(changed(ranksPerPod=2)) == [
        "spec.topology.ranksPerPod: expected a divisor of the 1 ranks of a replica, got 2"
    ]


def test_several_ranks_in_one_process_are_refused() -> None:
    wrong = json.loads(config(parallelism={"cfg": 2}).encode())
    wrong["engine"]["executor"] = "uni"
    assert messages(json.dumps(wrong)) == ["engine.executor: expected mp for 2 ranks, got uni"]


@pytest.mark.parametrize(
    "data",
    [
        "",
        "{",
        "[]",
        "null",
        b"\xff",
        '{"name": "a", "name": "b"}',
        '{"a": NaN}',
        "[" * 100_000,
        "x" * 2_000_000,
    ],
)
def test_rubbish_is_refused_with_a_reason(data: str | bytes) -> None:
    assert messages(data)


def test_a_file_that_is_not_there_is_a_spec_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="expected a readable file, got No such file"):
        load(tmp_path / "none.json")
