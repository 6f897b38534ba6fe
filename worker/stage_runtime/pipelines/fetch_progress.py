"""How much of a model that is being fetched is there, by what lies on the disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stage_api.startup_progress import Activity, StartProgress

_UNFINISHED: Final = ".cache/huggingface/download/**/*.incomplete"
"""Where the hub's library keeps what it has of a file, under the folder it fetches into."""


class FetchProgress:
    """Told what is to come by the thread that fetches; may be asked from any other."""

    def __init__(self) -> None:
        self._wanted: tuple[Path, Mapping[str, int]] | None = None

    def expect(self, folder: Path, sizes: Mapping[str, int]) -> None:
        """These files, of so many bytes each, are to be in the folder."""
        self._wanted = (folder, dict(sizes))

    def now(self) -> StartProgress:
        """Bytes that are there, whole files and begun ones, of all that are wanted."""
        if self._wanted is None:
            return StartProgress(activity=Activity.FETCHING)
        folder, sizes = self._wanted
        total = sum(sizes.values())
        whole = sum(min(_size(folder / path), size) for path, size in sizes.items())
        begun = sum(_size(path) for path in folder.glob(_UNFINISHED))
        return StartProgress(activity=Activity.FETCHING, done=min(whole + begun, total), total=total)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
