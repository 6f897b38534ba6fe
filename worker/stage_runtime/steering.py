"""What a loaded model can be told from Python, beside drawing. Every call is carried out between two steps, on every
rank, and what each rank answers comes back as a tuple in rank order."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stage_runtime.core.control import (
    Control,
    Health,
    Invoke,
    Pause,
    ProfileStart,
    ProfileStop,
    RankHealth,
    Resume,
    Sleep,
    SleepLevel,
    Wake,
)
from stage_runtime.core.errors import InvalidRequest
from stage_runtime.core.suspected_hang import LOOK_S

if TYPE_CHECKING:
    from stage_runtime.engine.base import StageEngine


class Steering:
    """Control calls as methods. They load the model if it isn't loaded, and wait for the step that is under way.

    Each raises InvalidRequest for what can't be done as things are; RequestFailed, naming the ranks, when it failed;
    EngineDeadError; NotAdmitting once closed.
    """

    _engine: StageEngine

    def load(self) -> None:
        """Load the model, unless it is loaded."""
        raise NotImplementedError

    def pause(self) -> None:
        """Stop where everything is. Calls of `generate`, also new ones, wait until `resume`. Idempotent."""
        self._carry_out(Pause())

    def resume(self) -> None:
        """Go on. Idempotent. Not while it sleeps: `wake` does both."""
        self._carry_out(Resume())

    def sleep(self, level: SleepLevel = 1) -> tuple[int, ...]:
        """Pause and free device memory: bytes freed, by rank.

        Level 1 keeps the weights in host memory (on a CPU they are there already, and nothing is freed), level 2
        drops them.
        """
        if level not in (1, 2) or isinstance(level, bool):
            raise InvalidRequest(f"level: expected 1 or 2, got {level!r}", "level")
        return tuple(self._carry_out(Sleep(level)))

    def wake(self) -> tuple[int, ...]:
        """Have the weights back, bit for bit, and go on: bytes that came back, by rank. Idempotent."""
        return tuple(self._carry_out(Wake()))

    def start_profile(self, folder: str | Path) -> None:
        """Record what every rank does, with torch's profiler. The folder is made if need be."""
        self._carry_out(ProfileStart(str(Path(folder).absolute())))

    def stop_profile(self) -> tuple[Path, ...]:
        """End the recording and write it: path of each rank's trace."""
        return tuple(Path(path) for path in self._carry_out(ProfileStop()))

    def health(self) -> tuple[RankHealth, ...]:
        """How each rank is."""
        return tuple(self._carry_out(Health()))

    def invoke(self, method: str, /, **arguments: Any) -> tuple[Any, ...]:
        """Call a method of the stage's worker extension on every rank: what it returns, by rank.

        Arguments and answers are plain values, lists and dicts of them, and torch tensors.
        """
        if not _is_plain(arguments):
            from stage_runtime.worker.tensor_wire import pack

            try:
                arguments = pack(arguments, "arguments")
            except TypeError as error:
                raise InvalidRequest(str(error), "arguments") from error
        answers = self._carry_out(Invoke(method, dict(arguments)))
        if _is_plain(answers):
            return tuple(answers)
        from stage_runtime.worker.tensor_wire import unpack

        return tuple(unpack(answers))

    def _carry_out(self, call: Control) -> Any:
        """The answer. The engine ends this wait: also its death and its close end every call."""
        self.load()
        future = self._engine.control(call)
        while True:
            try:
                return future.result(LOOK_S)
            except TimeoutError:
                self._engine.check_health()


def _is_plain(value: Any) -> bool:
    """True when nothing in it has to be packed or unpacked, for which torch would be loaded."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or (
        isinstance(value, str | float | bool | bytes) or (isinstance(value, int) and abs(value) < 2**63)
    )
