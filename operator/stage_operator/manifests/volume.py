"""What a stage's pods have mounted, and who may write to it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

from stage_api import names
from stage_api.control import ControlSpec
from stage_api.kube_values import amount
from stage_api.source import ClaimSource, HuggingFaceSource, ModelSource
from stage_api.stage import DiffusionStage
from stage_operator.values import Manifest

CONFIG: Final = f"{names.VOLUME_PREFIX}config"
CONTROL: Final = f"{names.VOLUME_PREFIX}control"
KEYS: Final = f"{names.VOLUME_PREFIX}keys"
MODEL: Final = f"{names.VOLUME_PREFIX}model"
SHM: Final = f"{names.VOLUME_PREFIX}shm"
TMP: Final = f"{names.VOLUME_PREFIX}tmp"
TOKEN: Final = f"{names.VOLUME_PREFIX}token"

_SERVER_FILES: Final = (names.KEY_SERVER_SECRET, names.KEY_SERVER_PUBLIC, names.KEY_CLIENT_PUBLIC)
_CLIENT_FILES: Final = (names.KEY_CLIENT_SECRET, names.KEY_CLIENT_PUBLIC, names.KEY_SERVER_PUBLIC)
_DIGEST_CHARS: Final = 10


@dataclass(frozen=True, slots=True)
class Mounted:
    """A volume, and how the stage's container and the one that fetches see it; None, not at all."""

    volume: Manifest
    in_stage: Manifest | None = None
    in_fetch: Manifest | None = None


def mounted(stage: DiffusionStage, config_map: str, ordinal: int) -> tuple[Mounted, ...]:
    """All volumes of the pod with this ordinal in its replica."""
    found = [_config(config_map), _tmp(), _shm(stage), _model(stage.spec.model.source)]
    if stage.spec.parallelism.world_size > stage.spec.ranks_per_pod:
        found.append(_keys(stage, ordinal))
    found.append(_token(stage.spec.model.source.hugging_face))
    if ordinal == 0:
        found.append(_control_token(stage.spec.control))
    return tuple(one for one in found if one is not None)


def model_folder(source: ModelSource) -> str | None:
    """Where in a pod the model's files are; None for a model in the image."""
    if source.embedded is not None:
        return None
    if source.hugging_face is None:
        return names.MODEL_DIR
    return f"{names.MODEL_DIR}/{_repository_folder(source.hugging_face)}"


def _repository_folder(source: HuggingFaceSource) -> str:
    """One folder for one choice of files, since a volume may keep several."""
    choice = [source.repo, source.revision, source.allow_patterns, source.ignore_patterns]
    digest = hashlib.sha256(json.dumps(choice).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{names.label_value(source.repo)}-{digest[:_DIGEST_CHARS]}"


def _mount(name: str, path: str, *, read_only: bool = False, sub_path: str | None = None) -> Manifest:
    made: Manifest = {"name": name, "mountPath": path}
    if read_only:
        made["readOnly"] = True
    if sub_path:
        made["subPath"] = sub_path
    return made


def _config(config_map: str) -> Mounted:
    mount = _mount(CONFIG, names.CONFIG_DIR, read_only=True)
    return Mounted({"name": CONFIG, "configMap": {"name": config_map}}, mount, mount)


def _tmp() -> Mounted:
    mount = _mount(TMP, names.TMP_DIR)
    return Mounted({"name": TMP, "emptyDir": {}}, mount, mount)


def _shm(stage: DiffusionStage) -> Mounted | None:
    size = stage.spec.resources.shared_memory
    if amount(size) == 0:
        return None
    volume = {"name": SHM, "emptyDir": {"medium": "Memory", "sizeLimit": str(size)}}
    return Mounted(volume, _mount(SHM, names.SHM_DIR))


def _keys(stage: DiffusionStage, ordinal: int) -> Mounted:
    files = _SERVER_FILES if ordinal == 0 else _CLIENT_FILES
    secret = {
        "secretName": names.keys_secret(stage.metadata.name),
        "items": [{"key": file, "path": file} for file in files],
    }
    return Mounted({"name": KEYS, "secret": secret}, _mount(KEYS, names.KEYS_DIR, read_only=True))


def _token(source: HuggingFaceSource | None) -> Mounted | None:
    if source is None or source.token_secret_ref is None:
        return None
    ref = source.token_secret_ref
    secret = {"secretName": ref.name, "items": [{"key": ref.key, "path": names.TOKEN_FILE}]}
    volume = {"name": TOKEN, "secret": secret}
    return Mounted(volume, in_fetch=_mount(TOKEN, names.TOKEN_DIR, read_only=True))


def _control_token(control: ControlSpec) -> Mounted | None:
    """NB: mounted as a folder, since files of a Secret that are mounted one by one never change."""
    if not control.enabled or control.token_secret_ref is None:
        return None
    ref = control.token_secret_ref
    secret = {"secretName": ref.name, "items": [{"key": ref.key, "path": names.TOKEN_FILE}]}
    mount = _mount(CONTROL, names.CONTROL_TOKEN_DIR, read_only=True)
    return Mounted({"name": CONTROL, "secret": secret}, in_stage=mount)


def _model(source: ModelSource) -> Mounted | None:
    if source.host_path is not None:
        return _read_only({"hostPath": {"path": source.host_path.path, "type": "Directory"}})
    if source.persistent_volume_claim is not None:
        claim = source.persistent_volume_claim
        return _read_only(_claim(claim, read_only=True), claim.sub_path)
    if source.image is not None:
        image = {"reference": source.image.reference, "pullPolicy": source.image.pull_policy.value}
        return _read_only({"image": image}, source.image.sub_path)
    if source.hugging_face is not None:
        return _fetched(source.hugging_face.cache)
    return None


def _read_only(kind: dict[str, Any], sub_path: str | None = None) -> Mounted:
    mount = _mount(MODEL, names.MODEL_DIR, read_only=True, sub_path=sub_path)
    return Mounted({"name": MODEL, **kind}, mount)


def _fetched(cache: ClaimSource | None) -> Mounted:
    sub_path = None if cache is None else cache.sub_path
    return Mounted(
        {"name": MODEL, **({"emptyDir": {}} if cache is None else _claim(cache, read_only=False))},
        _mount(MODEL, names.MODEL_DIR, read_only=True, sub_path=sub_path),
        _mount(MODEL, names.MODEL_DIR, sub_path=sub_path),
    )


def _claim(claim: ClaimSource, *, read_only: bool) -> dict[str, Any]:
    ref: Manifest = {"claimName": claim.claim_name}
    return {"persistentVolumeClaim": ref | ({"readOnly": True} if read_only else {})}
