"""Which device a rank computes on, decided by what was asked for, what torch can use and what the process was given.

Nothing falls back to the CPU without a word: in a pod with an accelerator that torch can't use, `auto` is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NoReturn

from stage_api.devices import Device
from stage_api.errors import Fault, SpecError
from stage_runtime.core.errors import DeviceLost, ModelError
from stage_runtime.devices.container_accelerators import Given

FIELD: Final = "spec.engine.device"


@dataclass(frozen=True, slots=True)
class Usable:
    """What torch can use in this process."""

    kind: Device | None = None
    """Of the accelerators that it sees; None for none."""
    count: int = 0
    built: frozenset[Device] = frozenset()
    """What this build of torch could use, if it were there."""
    version: str = ""
    """Of torch."""
    unknown: str = ""
    """What torch calls an accelerator that this version has no module for."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A device: its kind, which one of them, and what was passed over for it."""

    kind: Device
    index: int = 0
    passed_over: str = ""
    """What tells of an accelerator on this machine that torch can't use; to be said aloud."""


def choose(wanted: Device, index: int, usable: Usable, given: Given) -> Choice:
    """The device of the `index`-th rank of this machine.

    Raises: ModelError when there is none, or too few; SpecError when this build of torch can't use what the pod was
        given, or it is hidden; DeviceLost when it could, but doesn't see any: another node may fare better.
    """
    if wanted is Device.CPU:
        return Choice(Device.CPU)
    if usable.unknown:
        raise ModelError(f"torch has an accelerator of the kind {usable.unknown}, which can't be used yet")
    if usable.kind is not None and _is(usable.kind, wanted):
        if index >= usable.count:
            kind = usable.kind.value
            raise ModelError(
                f"rank {index} of this machine needs a {kind} of its own; there are {usable.count}"
            )
        return Choice(usable.kind, index)
    signs = given.of(None if wanted is Device.AUTO else wanted)
    words = ", ".join(sign.words for sign in signs)
    if signs and given.in_pod:
        _refuse(wanted, signs[0].kind, words, usable, given)
    if wanted is not Device.AUTO:
        built = "" if wanted in usable.built else f", and torch {usable.version} isn't built for it"
        raise ModelError(f"engine.device is {wanted.value}, but this machine has none{built}")
    return Choice(Device.CPU, passed_over=words)


def _is(found: Device, wanted: Device) -> bool:
    """torch calls two makers' devices by one name, and so may a stage."""
    return wanted in (Device.AUTO, found) or (wanted is Device.CUDA and found is Device.ROCM)


def _refuse(wanted: Device, kind: Device | None, words: str, usable: Usable, given: Given) -> NoReturn:
    """End the start for an accelerator that was given and can't be used."""
    if given.hidden_by is not None:
        fault = Fault(FIELD, f"cpu, since {given.hidden_by} hides every accelerator", wanted.value)
        raise SpecError([fault])
    if not (usable.built if kind is None else kind in usable.built):
        needed = "an accelerator" if kind is None else kind.value
        expected = f"cpu, or an image whose torch is built for {needed} ({words}; torch is {usable.version})"
        raise SpecError([Fault(FIELD, expected, wanted.value)])
    raise DeviceLost(f"{words}, but torch {usable.version} sees no accelerator: is the node's driver well?")
