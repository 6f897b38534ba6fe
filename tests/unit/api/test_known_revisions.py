"""Revision and config of manifests as they once were: an upgrade to this version replaces none of their pods.

`known_revisions.jsonl` has a line for each manifest of the examples and of the tests: its spec, the revision, and a
digest of the config's bytes. Lines are added, never changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stage_api import names
from stage_api.canonical import canonical_spec
from stage_api.config import StageConfig
from stage_api.manifest import parse_stage
from stage_api.revision import revision_of, spelled_revision_of
from stage_api.stage import DiffusionStage

KNOWN = Path(__file__).with_name("known_revisions.jsonl")


def known() -> Iterator[tuple[dict[str, Any], DiffusionStage]]:
    for line in KNOWN.read_text(encoding="ascii").splitlines():
        told = json.loads(line)
        stage = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": "flux", "namespace": "art"},
            "spec": told["spec"],
        }
        yield told, parse_stage(stage)


def digest(config: str) -> str:
    return hashlib.sha256(config.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def test_no_revision_is_another_than_it_was() -> None:
    changed = [
        told["spec"]
        for told, stage in known()
        if told["revision"] not in (revision_of(stage), spelled_revision_of(stage))
    ]
    assert changed == []


def test_only_what_is_written_in_a_longer_way_than_it_could_be_has_a_new_revision_beside_its_old_one() -> (
    None
):
    renamed = {told["revision"]: stage for told, stage in known() if told["revision"] != revision_of(stage)}
    assert {stage.spec == canonical_spec(stage) for stage in renamed.values()} == {False}


def test_no_config_has_other_bytes_than_it_had() -> None:
    changed = [
        told["spec"]
        for told, stage in known()
        if digest(StageConfig.from_stage(stage).encode()) != told["config"]
    ]
    assert changed == []
