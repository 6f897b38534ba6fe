"""What accelerators this process was handed, found without torch: by what its pod and its container were told, and by
the files of /dev.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stage_api import names
from stage_api.devices import ACCELERATORS, Accelerator, Device, kind_of_resource

DEV: Final = Path("/dev")
CLUSTER: Final = "KUBERNETES_SERVICE_HOST"
"""Set in every container of a pod."""
_NOBODY: Final = frozenset({"", "void", "none", "all"})
"""What images and runtimes set whether there is an accelerator or not."""
_HIDES_ALL: Final = frozenset({"", "-1", "NoDevFiles"})


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing that says that there is an accelerator."""

    kind: Device | None
    """None where the resource is one that nobody here knows."""
    words: str


@dataclass(frozen=True, slots=True)
class Given:
    """All that tells of accelerators, the surest first."""

    in_pod: bool = False
    """In a pod, what is there was given on purpose; elsewhere it may be any machine's graphics card."""
    signs: tuple[Sign, ...] = ()
    hidden_by: str | None = None
    """The environment variable that hides all accelerators from this process, if one does."""

    def of(self, kind: Device | None) -> tuple[Sign, ...]:
        """The signs of one kind of accelerator; of any kind for None."""
        return tuple(sign for sign in self.signs if kind in (None, sign.kind))


def find(environ: Mapping[str, str], dev: Path = DEV) -> Given:
    """What a process with this environment, and with these files of devices, was handed."""
    signs = []
    if resource := environ.get(names.ENV_ACCELERATOR):
        signs.append(Sign(kind_of_resource(resource), f"the pod has {resource}"))
    for kind, facts in ACCELERATORS.items():
        if found := tuple(_traces(facts, environ, dev)):
            signs += [Sign(kind, words) for words in found]
            break
    hidden = (facts.visible for facts in ACCELERATORS.values() if environ.get(facts.visible) in _HIDES_ALL)
    return Given(CLUSTER in environ, tuple(signs), next(hidden, None))


def _traces(facts: Accelerator, environ: Mapping[str, str], dev: Path) -> Iterator[str]:
    handed = environ.get(facts.handed, "") if facts.handed else ""
    if handed.lower() not in _NOBODY:
        yield f"{facts.handed} is {handed}"
    for pattern in facts.files:
        if there := next(iter(sorted(dev.glob(pattern))), None):
            yield f"{there} is there"
