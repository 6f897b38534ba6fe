"""What a start says it is doing, as far as its reader understands it."""

from __future__ import annotations

from typing import Any

import pytest

from stage_api.startup_progress import Activity, StartProgress


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        ({"activity": "fetching", "done": 0, "total": 0}, "fetching the model: 0 B of 0 B"),
        ({"activity": "fetching", "done": 999, "total": 1000}, "fetching the model: 999 B of 1.0 kB"),
        (
            {"activity": "fetching", "done": 999_949_999, "total": 999_950_000},
            "fetching the model: 999.9 MB of 1.0 GB",
        ),
        ({"activity": "fetching", "done": 10**20}, "fetching the model: 100000000.0 TB"),
        (
            {"activity": "loading", "what": "transformer", "done": 2, "total": 5},
            "loading the model: transformer, 2 of 5 components",
        ),
        ({"activity": "probing", "what": "vae.decode"}, "probing the model: vae.decode"),
        ({"activity": "warming up", "done": 1, "total": 3}, "warming up the model: 1 of 3 requests"),
        ({"activity": "loading"}, "loading the model"),
        ({"activity": "loading", "of a newer version": 1}, "loading the model"),
    ],
    ids=str,
)
def test_a_start_is_told_in_words(progress: dict[str, Any], text: str) -> None:
    found = StartProgress.of({"ok": False, "progress": progress})
    assert found is not None
    assert found.text() == text


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"progress": None},
        {"progress": "loading"},
        {"progress": []},
        {"progress": {"activity": "dreaming"}},
        {"progress": {"activity": "loading", "what": "x" * 129}},
        {"progress": {"activity": "loading", "done": -1}},
        {"progress": {"activity": "loading", "done": "2"}},
    ],
    ids=str,
)
def test_what_is_not_understood_says_nothing(body: dict[str, Any]) -> None:
    assert StartProgress.of(body) is None


def test_what_is_written_is_read() -> None:
    progress = StartProgress(activity=Activity.PROBING, what="unet", done=1, total=4)
    assert StartProgress.of({"progress": progress.to_json()}) == progress
