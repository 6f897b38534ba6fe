"""How far a fetch is, by what lies on the disk."""

from __future__ import annotations

from pathlib import Path

from stage_api.startup_progress import Activity, StartProgress
from stage_runtime.pipelines.fetch_progress import FetchProgress


def put(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))


def told(progress: FetchProgress) -> tuple[int | None, int | None]:
    now = progress.now()
    assert now.activity is Activity.FETCHING
    return now.done, now.total


def test_before_anything_is_known_it_is_fetching() -> None:
    assert FetchProgress().now() == StartProgress(activity=Activity.FETCHING)


def test_whole_files_and_begun_ones_count_and_others_do_not(tmp_path: Path) -> None:
    progress = FetchProgress()
    progress.expect(tmp_path / "model", {"a": 10, "unet/b": 100, "c": 0})
    assert told(progress) == (0, 110), "the folder need not be there yet"
    put(tmp_path / "model" / "a", 10)
    put(tmp_path / "model" / "another's", 1000)
    put(tmp_path / "model" / ".cache/huggingface/download/unet/x.y.incomplete", 40)
    assert told(progress) == (50, 110)
    put(tmp_path / "model" / "unet/b", 100)
    assert told(progress) == (110, 110), "what is left of a begun one makes it no more than all"
