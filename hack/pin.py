"""Write `constraints/*.txt`: the versions that one environment holds for a set of extras.

Run it in an environment where `.[operator,worker,dev]` is installed. Versions only: where packages come
from, and which build of torch fits the machine, is the business of whoever installs.
"""

from __future__ import annotations

import argparse
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
FILES = {
    "operator.txt": ("operator",),
    "worker.txt": ("worker",),
    "dev.txt": ("operator", "worker", "dev"),
}


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for name, extras in FILES.items():
        pins = closure(Requirement(f"omnistage[{','.join(extras)}]"))
        pins.pop("omnistage", None)
        header = f"# Versions for .[{','.join(extras)}], written by hack/pin.py.\n"
        lines = [f"{package}=={version}\n" for package, version in sorted(pins.items())]
        (ROOT / "constraints" / name).write_text(header + "".join(lines))
        print(f"constraints/{name}: {len(lines)} packages")


def closure(root: Requirement) -> dict[str, str]:
    """Package -> public version, for everything that `root` pulls in here and now."""
    pins: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    queue = [root]
    while queue:
        requirement = queue.pop()
        for extra in ("", *requirement.extras):
            key = (canonicalize_name(requirement.name), extra)
            if key in seen:
                continue
            seen.add(key)
            try:
                found = distribution(requirement.name)
            except PackageNotFoundError as error:
                raise SystemExit(f"{requirement.name} is not installed: make setup first") from error
            pins[key[0]] = Version(found.version).public
            queue += wanted(found.requires or (), extra)
    return pins


def wanted(lines: list[str] | tuple[str, ...], extra: str) -> list[Requirement]:
    """The requirements among `lines` that hold on this machine when `extra` is asked for."""
    requirements = [Requirement(line) for line in lines]
    return [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": extra})]


if __name__ == "__main__":
    main()
