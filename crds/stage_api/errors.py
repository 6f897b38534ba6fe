"""Faults of a specification: where, what was expected, what was got.

Decides how a wrong manifest or config is reported. Knows nothing of how it was read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

SHOWN_CHARS: Final = 80  # a value longer than this is cut in a message


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a manifest or config.

    `path` is dotted from the top of the document (`spec.engine.warmup[0].width`); it may be
    empty when the document as a whole is at fault.
    """

    path: str
    expected: str
    got: str

    def under(self, prefix: str) -> Fault:
        """The same fault seen from a level above, where this value sits at `prefix`."""
        return Fault(join(prefix, self.path), self.expected, self.got)

    def __str__(self) -> str:
        where = f"{self.path}: " if self.path else ""
        return f"{where}expected {self.expected}, got {self.got}"


class SpecError(Exception):
    """A manifest or config is wrong. Holds every fault found, never only the first.

    A process that starts with such a config exits with `ExitCode.CONFIG`.
    """

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults: Final[tuple[Fault, ...]] = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


def join(prefix: str, path: str) -> str:
    """Two parts of a path as one: `spec` + `model.name`, `spec` + `[0]`, `` + `spec`."""
    if not prefix or not path or path.startswith("["):
        return prefix + path
    return f"{prefix}.{path}"


def show(value: object) -> str:
    """A value as a message shows it: one line of JSON, cut when long."""
    try:
        text = json.dumps(value, ensure_ascii=True, default=repr)
    except (ValueError, TypeError, RecursionError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."
