"""The one file that tells a pod what it is: a stage's spec, resolved, and the topology's digest.

The operator (or a local run) makes it from the stage; every pod loads it, derives the topology
anew and compares. What differs from pod to pod is in the environment instead.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import Field

from stage_api import names
from stage_api.base import Contract, Law
from stage_api.decode import decode
from stage_api.errors import Fault, SpecError, show
from stage_api.execution import unsupported, unsupported_in
from stage_api.parallelism import MAX_RANKS_PER_POD
from stage_api.section import Entry, entries
from stage_api.spec import UNI_LAW, PodSections
from stage_api.stage import DiffusionStage
from stage_api.topology import Topology, derive

MAX_CONFIG_BYTES: Final = 1 << 20  # of a ConfigMap
_DEMANDED: Final = ("engine", "parallelism", "startup", "drain", "offload")
"""Sections that pods of the first versions demand, though nothing is said in them."""


class StageConfig(PodSections):
    """All that is the same for every pod of a stage: the sections that pods are told, and what follows from others."""

    contract_version: int = Field(description="Version of this file's meaning.")
    name: str = Field(description="Name of the stage.")
    namespace: str = Field(description="Namespace of the stage.")
    ranks_per_pod: Annotated[int, Field(ge=1, le=MAX_RANKS_PER_POD)] = Field(
        description="Ranks in each pod, filled in."
    )
    topology_digest: str = Field(description="Digest of the topology that the maker of this file derived.")

    laws: ClassVar[tuple[Law, ...]] = (UNI_LAW,)

    @classmethod
    def from_stage(cls, stage: DiffusionStage) -> Self:
        """The config of a stage's pods."""
        spec = stage.spec
        told = {entry.name: _as_told(entry, getattr(spec, entry.name)) for entry in entries(PodSections)}
        told["model"] = spec.model.model_copy(update={"name": stage.served_name})
        return cls(
            contract_version=names.CONTRACT_VERSION,
            name=stage.metadata.name,
            namespace=stage.metadata.namespace,
            ranks_per_pod=spec.ranks_per_pod,
            topology_digest=derive(spec.parallelism, spec.ranks_per_pod).digest,
            **told,
        )

    @property
    def served_name(self) -> str:
        """Name that requests use in `model`."""
        return self.model.name or self.name

    def topology(self) -> Topology:
        """Who sits where."""
        return derive(self.parallelism, self.ranks_per_pod)

    def encode(self) -> str:
        """The file's text: the same for equal configs.

        What equals its default is left out, so that a pod of an older version, which refuses fields that it doesn't
        know, can read it as long as nobody asks for what only a newer one has.
        """
        told = self.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude_none=True)
        told = {**{section: {} for section in _DEMANDED}, **told}
        return json.dumps(told, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _as_told(entry: Entry, value: Any) -> Any:
    """A section of the spec as pods know it: less what only the operator reads."""
    if isinstance(value, Contract) and type(value) is not entry.kind:
        return entry.kind.model_validate({name: getattr(value, name) for name in entry.kind.model_fields})
    return value


def load(path: str | Path, *, executable: bool = False) -> StageConfig:
    """The config in a file.

    `executable`: what this version can't execute is a fault too.

    Raises: SpecError if the file can't be read, breaks the contract, is of another version, or
        names another topology than the one derived here.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise SpecError([Fault(str(path), "a readable file", error.strerror or "an error")]) from error
    return parse(data, executable=executable)


def parse(data: bytes | str, *, executable: bool = False) -> StageConfig:
    """The config in the bytes of its file. Raises: SpecError with every fault, as `load`."""
    value = _json(data)
    version = value.get("contractVersion") if isinstance(value, dict) else None
    if version is not None and version != names.CONTRACT_VERSION:
        # First and alone: what else looks wrong is only the other version's spelling.
        raise SpecError([Fault("contractVersion", str(names.CONTRACT_VERSION), show(version))])
    try:
        config = decode(StageConfig, value)
        derived = config.topology().digest
    except SpecError as error:
        refused = unsupported_in(StageConfig, value) if executable else ()
        raise SpecError((*error.faults, *refused)) from None
    faults = list(unsupported(config)) if executable else []
    if config.topology_digest != derived:
        faults.append(Fault("topologyDigest", derived, config.topology_digest))
    if faults:
        raise SpecError(faults)
    return config


def _json(data: bytes | str) -> object:
    if len(data) > MAX_CONFIG_BYTES:
        raise SpecError([Fault("", f"at most {MAX_CONFIG_BYTES} bytes", f"at least {len(data)}")])
    try:
        return json.loads(data, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise SpecError([Fault("", "JSON", f"something else ({error})")]) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return made


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")
