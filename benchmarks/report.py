"""One row a figure: the value, how it compares, what it should be, and what a peer was measured at."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.machine import Load


@dataclass(slots=True, kw_only=True)
class Row:
    """One figure. The aim is for `ratio` where there is one, else for `value`."""

    what: str
    value: float
    unit: str
    ratio: float | None = None
    by_cpu: float | None = None
    """The figure that the aim is for, in CPU time, which other processes disturb less."""
    aim: float | None = None
    at_least: bool = False
    """The aim is a floor, not a ceiling."""
    peer: str = ""
    """What a peer was measured at elsewhere; not measured here."""
    timed: bool = True
    """False for what a busy machine doesn't change."""
    details: dict[str, object] = field(default_factory=dict)
    load: Load | None = None

    @property
    def verdict(self) -> str:
        """Whether the aim is met; on a busy machine by CPU time where that says it, else not at all."""
        if self.aim is None:
            return ""
        figure, how = self.value if self.ratio is None else self.ratio, ""
        if self.timed and self.load is not None and self.load.busy:
            if self.by_cpu is None:
                return "busy"
            figure, how = self.by_cpu, " (CPU)"
        met = figure >= self.aim if self.at_least else figure <= self.aim
        return ("met" if met else "missed") + how


def table(rows: Sequence[Row], *, verdicts: bool = True) -> str:
    """Rows as text."""
    head = ("what", "value", "ratio", "by CPU", "aim", "peer", "")
    return aligned([head, *(_cells(row, verdicts) for row in rows)], words=(0, 5, 6))


def aligned(lines: Sequence[Sequence[str]], *, words: Sequence[int]) -> str:
    """A head and what is under it, in columns; those of numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(
            cell.ljust(width) if place in words else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    text.insert(1, "─" * max(map(len, text)))
    return "\n".join(text)


def _cells(row: Row, verdicts: bool) -> tuple[str, ...]:
    aim = ""
    if row.aim is not None:
        unit = "" if row.ratio is not None else f" {row.unit}".rstrip()
        aim = f"{'≥' if row.at_least else '≤'} {row.aim:g}{unit}"
    return (
        row.what,
        f"{_short(row.value)} {row.unit}".rstrip(),
        "" if row.ratio is None else f"{row.ratio:.3f}",
        "" if row.by_cpu is None else f"{row.by_cpu:.3f}",
        aim,
        row.peer,
        row.verdict if verdicts else "",
    )


def _short(value: float) -> str:
    """Three digits, or all before the point."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"


def write_json(path: Path, rows: Sequence[Row], **about: object) -> None:
    """Everything, for a program to read."""
    figures = [{**asdict(row), "verdict": row.verdict} for row in rows]
    path.write_text(json.dumps({**about, "rows": figures}, indent=2, ensure_ascii=False) + "\n")
