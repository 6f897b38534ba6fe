"""The one runner: `python -m benchmarks [PROGRAM] [options]`, from the repository's root.

Without a program's name it is `engine`.
"""

from __future__ import annotations

import importlib
import sys

from benchmarks import machine  # noqa: F401 - first, since it sets the number of threads

PROGRAMS = {
    "engine": "benchmarks.engine.run",
    "against": "benchmarks.against",
    "soak": "benchmarks.engine.soak",
    "fleet": "benchmarks.fleet.run",
    "recovery": "benchmarks.fleet.recovery",
}
"""Each is a module with `main(arguments) -> exit code`."""


def main(arguments: list[str]) -> int:
    """Run the program named first."""
    name = arguments[0] if arguments and arguments[0] in PROGRAMS else None
    module = importlib.import_module(PROGRAMS[name or "engine"])
    return int(module.main(arguments[1:] if name else arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
