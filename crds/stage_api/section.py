"""What is true of a section of the spec beside its fields: said where the section is entered into the spec.

A `Section` stands in the `Annotated` of the spec's field. The revision, the config of the pods, what is refused, the
reference page and the CRD all follow from these entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from stage_api.base import Contract, Limit


@dataclass(frozen=True, slots=True)
class Section:
    """Facts of one entry."""

    replaces_pods: bool | frozenset[str] = True
    """Whether another value is another revision, or the names of those of its fields of which that is so."""


class Entry(NamedTuple):
    """A section as a model has it."""

    name: str
    alias: str
    kind: Any
    """Its type: a class of the contract, or a plain one."""
    section: Section

    @property
    def executable(self) -> Mapping[str, Limit]:
        """What this version can execute of it, by path inside it; what isn't listed has no limit."""
        return self.model.executable if self.model else {}

    @property
    def model(self) -> type[Contract] | None:
        """The class of the contract that it is, if it is one."""
        return self.kind if isinstance(self.kind, type) and issubclass(self.kind, Contract) else None


def entries(model: type[Contract]) -> Iterator[Entry]:
    """The sections of a spec or a config, in order; fields that have no `Section` are none."""
    for name, info in model.model_fields.items():
        for fact in info.metadata:
            if isinstance(fact, Section):
                yield Entry(name, info.alias or name, info.annotation, fact)
