"""Is an exception one request's fault, or is the accelerator itself lost?

An accelerator's error can be sticky: the context is poisoned, and each later call on it fails too. Waiting for the
device once more tells: a poisoned context fails that as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stage_runtime.core.error_codec import words_of
from stage_runtime.core.errors import DeviceLost
from stage_runtime.core.memory_errors import out_of_memory


@dataclass(slots=True)
class FaultProbe:
    """Asks the device after each exception that a module raised. `synchronize` waits for all its work.

    A CPU has no context that could be poisoned, and nothing to wait for.
    """

    synchronize: Callable[[], None]

    def __call__(self, error: Exception) -> None:
        """Returns when the device is well. Raises DeviceLost when it is not."""
        if out_of_memory(error):
            return
        try:
            self.synchronize()
        except Exception as sticky:
            raise DeviceLost(f"the device failed and stays failed: {words_of(error)}") from sticky
