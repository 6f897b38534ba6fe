"""Fetches a model of the Hugging Face Hub into a folder, before its stage starts.

The commit is pinned, so a file that is there with its size is the right one: a fetch that was cut off goes on where
it was, and one that was done asks nobody. Nothing in here needs torch.
"""

from __future__ import annotations

import errno
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import (  # type: ignore[attr-defined] # HTTPError: the hub can't be talked to
    DisabledRepoError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile

from stage_api import names
from stage_api.errors import Fault, SpecError
from stage_api.source import HuggingFaceSource
from stage_runtime.core.errors import FetchFailed, ModelError
from stage_runtime.pipelines.fetch_locks import await_lock, knows_flock
from stage_runtime.pipelines.fetch_progress import FetchProgress

DONE: Final = ".fetched.json"
"""File in the folder that says that all is there: each file's size by its path."""
WORKERS: Final = 8
FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 30.0

_HOPELESS: Final = (
    DisabledRepoError,
    EntryNotFoundError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
_TRY_AGAIN: Final = frozenset({408, 425, 429})
"""Refusals that pass; any other refusal of the hub stays."""
_LOCAL: Final = {
    errno.EACCES: "can't be written to: give the pod a group that may, with podTemplate's securityContext.fsGroup",
    errno.EPERM: "can't be written to",
    errno.EROFS: "is read-only",
    errno.ENOTDIR: "is no folder",
    errno.EEXIST: "is no folder",
    errno.ENOSPC: "is full",
    errno.EDQUOT: "is full",
}

log = logging.getLogger(__name__)


def fetch(
    source: HuggingFaceSource,
    folder: Path,
    *,
    token: str | None,
    deadline_s: float,
    progress: FetchProgress | None = None,
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Bring the files that `source` means into `folder`. `deadline_s`: on the monotonic clock.

    What may pass is tried again until the deadline. `progress` is told what is to come. `wait`: sleeps so many seconds.

    Raises: ModelError if another try would end the same way, FetchFailed if it may not.
    """
    if _is_done(folder):
        log.info("model is there", extra={"folder": str(folder)})
        return
    pause_s = FIRST_WAIT_S
    while True:
        try:
            _attempt(source, folder, token, deadline_s, progress or FetchProgress())
            return
        except (OSError, HTTPError, EntryNotFoundError, HFValidationError) as error:
            reason = _judged(source, folder, token, error)
        if time.monotonic() + pause_s >= deadline_s:
            raise FetchFailed(f"{source.repo} could not be fetched in time: {reason}")
        log.warning("fetch failed, trying again", extra={"error": reason, "wait_seconds": pause_s})
        wait(pause_s)
        pause_s = min(2 * pause_s, LONGEST_WAIT_S)


def read_token(source: HuggingFaceSource, folder: Path = Path(names.TOKEN_DIR)) -> str | None:
    """The token that the stage says to use; None if it says none.

    Raises: SpecError if it isn't there, or is empty.
    """
    if source.token_secret_ref is None:
        return None
    path = folder / names.TOKEN_FILE
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError([Fault(str(path), "a file with a token", type(error).__name__)]) from error
    if not token:
        raise SpecError([Fault(str(path), "a file with a token", "an empty one")])
    return token


def _attempt(
    source: HuggingFaceSource, folder: Path, token: str | None, deadline_s: float, progress: FetchProgress
) -> None:
    # False: no token but the stage's, wherever this machine may have one.
    api = HfApi(endpoint=source.endpoint, token=token or False)
    tree = api.list_repo_tree(source.repo, recursive=True, revision=source.revision)
    sizes = {file.path: file.size for file in tree if isinstance(file, RepoFile)}
    wanted = {path: sizes[path] for path in _chosen(source, sizes)}
    if not wanted:
        raise ModelError(f"{source.repo} has no file that allowPatterns and ignorePatterns leave")
    progress.expect(folder, wanted)
    missing = {path: size for path, size in wanted.items() if not _is_there(folder, path, size)}
    folder.mkdir(parents=True, exist_ok=True)
    _check_room(folder, missing)
    log.info("fetching", extra={"repo": source.repo, "files": len(missing), "bytes": sum(missing.values())})

    locks_last = not knows_flock(folder)

    def bring(path: str) -> None:
        if locks_last:
            await_lock(folder, path, deadline_s)
        if _is_there(folder, path, wanted[path]):  # another pod was faster
            return
        # The hub's library takes whatever is there for the file; what it has of an unfinished one lies elsewhere.
        (folder / path).unlink(missing_ok=True)
        hf_hub_download(
            source.repo,
            path,
            revision=source.revision,
            local_dir=folder,
            token=token or False,
            endpoint=source.endpoint,
        )
        if not _is_there(folder, path, wanted[path]):
            raise OSError(f"{path} came with another size than {wanted[path]} bytes")

    with ThreadPoolExecutor(WORKERS, thread_name_prefix="fetch") as pool:
        under_way = [pool.submit(bring, path) for path in missing]
        try:
            for one in under_way:
                one.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    _mark_done(folder, wanted)
    log.info("fetched", extra={"repo": source.repo, "files": len(wanted)})


def _chosen(source: HuggingFaceSource, sizes: Mapping[str, int]) -> list[str]:
    paths = [
        path
        for path in sizes
        if _matches(path, source.allow_patterns or ("*",)) and not _matches(path, source.ignore_patterns)
    ]
    for path in paths:
        if path.startswith("/") or ".." in path.split("/") or path == DONE:
            raise ModelError(f"{source.repo} has a file that can't be placed: {json.dumps(path)}")
    return paths


def _matches(path: str, patterns: Iterable[str]) -> bool:
    """As the hub's own tools match: a star matches slashes too, and a folder all that is in it."""
    return any(fnmatchcase(path, f"{pattern}*" if pattern.endswith("/") else pattern) for pattern in patterns)


def _check_room(folder: Path, missing: Mapping[str, int]) -> None:
    needed, free = sum(missing.values()), shutil.disk_usage(folder).free
    if needed > free:
        raise FetchFailed(f"{folder} has room for {free} bytes, and {needed} are to be fetched")


def _judged(source: HuggingFaceSource, folder: Path, token: str | None, error: Exception) -> str:
    """What went wrong, if another try may help. Raises: ModelError or FetchFailed if it can't."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, LocalEntryNotFoundError):  # the hub could not be asked
        cause = error.__cause__
        return f"{text} ({cause})" if cause is not None else text
    if token and _status(error) == 401:  # one that is taken and not enough gets 403 or 404
        raise ModelError(f"the hub refused the stage's token for {source.repo}: {text}") from error
    if isinstance(error, GatedRepoError) or _status(error) in (401, 403):
        who = "with the stage's token" if token else "without a token"
        raise ModelError(f"{source.repo} may not be read {who}: {text}") from error
    if isinstance(error, _HOPELESS):
        raise ModelError(f"{source.repo} at {source.revision}: {text}") from error
    status = _status(error)
    if status is not None and 400 <= status < 500 and status not in _TRY_AGAIN:
        raise ModelError(f"{source.repo} at {source.revision}: {text}") from error
    if isinstance(error, OSError) and error.errno in _LOCAL:
        raise FetchFailed(f"{folder} {_LOCAL[error.errno]}") from error
    return text


def _status(error: Exception) -> int | None:
    return error.response.status_code if isinstance(error, HfHubHTTPError) else None


def _is_there(folder: Path, path: str, size: int) -> bool:
    try:
        return (folder / path).stat().st_size == size
    except OSError:
        return False


def _is_done(folder: Path) -> bool:
    try:
        sizes = json.loads((folder / DONE).read_text(encoding="utf-8"))
        return all(_is_there(folder, path, size) for path, size in sizes.items())
    except (OSError, ValueError, AttributeError):
        return False


def _mark_done(folder: Path, sizes: Mapping[str, int]) -> None:
    """Whole or not at all, whoever else fetches into the same folder."""
    new = folder / f"{DONE}.new"
    new.write_text(json.dumps(dict(sizes), indent=1, sort_keys=True), encoding="utf-8")
    new.replace(folder / DONE)
