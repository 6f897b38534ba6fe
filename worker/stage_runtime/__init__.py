"""The runtime of a stage. `from stage_runtime import Omni` draws pictures from Python.

Importing this package loads nothing but itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stage_runtime.omni import Omni

    __version__: str

__all__ = ["Omni", "__version__"]


def __getattr__(name: str) -> object:
    if name == "Omni":
        from stage_runtime.omni import Omni

        return Omni
    if name == "__version__":
        from importlib.metadata import version

        return version("omnistage")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
