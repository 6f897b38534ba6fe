"""The ConfigMap with a stage's config.

It never changes: another config is another ConfigMap, so that the pods of one life all read the same, whatever
becomes of the stage meanwhile.
"""

from __future__ import annotations

import hashlib
from typing import Final

from stage_api import names
from stage_api.config import StageConfig
from stage_api.stage import DiffusionStage
from stage_operator.manifests.identity import child
from stage_operator.values import Manifest

RANKS_FILE: Final = "ranks.txt"
"""The rank table, for people; pods derive it by themselves."""
DIGEST_CHARS: Final = 10


def config_map(stage: DiffusionStage) -> Manifest:
    """The config of the stage as it is now."""
    config = StageConfig.from_stage(stage)
    text = config.encode()
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_CHARS]
    return child(
        stage,
        "ConfigMap",
        names.config_map(stage.metadata.name, digest),
        immutable=True,
        data={names.CONFIG_FILE: text, RANKS_FILE: config.topology().rank_table() + "\n"},
    )
