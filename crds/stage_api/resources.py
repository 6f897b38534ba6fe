"""What each pod of a stage asks of its node."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from stage_api.base import Contract, Law
from stage_api.devices import ACCELERATORS, DEFAULT_RESOURCE, RESOURCES
from stage_api.errors import Fault
from stage_api.kube_values import PRUNED, Quantity, amount

Amounts = Annotated[dict[str, Quantity], Field(max_length=16), PRUNED]


def _accelerators_are_counted(
    accelerator: str | None, requests: dict[str, Quantity], limits: dict[str, Quantity]
) -> Fault | None:
    counted = RESOURCES if accelerator is None else (accelerator,)
    for field, amounts in (("requests", requests), ("limits", limits)):
        for resource in counted:
            if resource in amounts:
                return Fault(field, f"no {resource}, of which each rank gets one", str(amounts[resource]))
    return None


def _shared_memory_fits(shared_memory: Quantity, limits: dict[str, Quantity]) -> Fault | None:
    limit = limits.get("memory")
    if limit is None or amount(shared_memory) <= amount(limit):
        return None
    return Fault("sharedMemory", f"at most limits.memory {limit}, of which it is a part", str(shared_memory))


class ResourcesSpec(Contract):
    """What each pod asks of its node."""

    accelerator: (
        Annotated[
            str,
            Field(
                max_length=317,
                pattern=r"^$|^[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-A-Za-z0-9_.]*$",
                json_schema_extra={
                    "x-expected": f"a resource such as {DEFAULT_RESOURCE}, or an empty text for none"
                },
            ),
        ]
        | None
    ) = Field(
        default=None,
        description="Resource of which each rank gets one; an empty text for none. "
        f"Left out, what engine.device is usually called, and {DEFAULT_RESOURCE} for auto: "
        + ", ".join(f"{kind.value} {facts.resource or 'none'}" for kind, facts in ACCELERATORS.items())
        + ", cpu none.",
    )
    requests: Amounts = Field(
        default={},
        description="What a pod needs, such as {cpu: 4, memory: 16Gi}; for all its ranks together, accelerators aside.",
    )
    limits: Amounts = Field(
        default={},
        description="The most a pod may take; for all its ranks together, accelerators aside.",
    )
    shared_memory: Quantity = Field(
        default="2Gi",
        description="Size of /dev/shm, through which the ranks of a pod hand over pictures. "
        "It counts as memory of the pod. 0 leaves the runtime's own, which is small.",
    )

    laws: ClassVar[tuple[Law, ...]] = (
        Law(
            ("accelerator", "requests", "limits"),
            None,
            "requests and limits must leave the accelerator out: each rank gets one",
            _accelerators_are_counted,
        ),
        Law(
            ("shared_memory", "limits"),
            None,
            "must be at most limits.memory, of which it is a part",
            _shared_memory_fits,
            "sharedMemory",
        ),
    )
