"""The two images, built as a user builds them, and commands run inside."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TAG = "test"
BUILD_S = 900
RUN_S = 90

needs_builder = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("buildah") is None,
    reason="THE IMAGES ARE NOT TESTED: buildah is missing, or this is not root",
)
REGISTRY = os.environ.get("IMAGE_REGISTRY", "")
"""Where the nodes of the cluster under test pull from, such as 10.0.0.1:5000; plain http will do."""


@functools.cache
def image(part: str) -> str:
    """Name of the operator's or the worker's image, built from this checkout."""
    provide_base()
    environment = {**os.environ, "BUILDER": "buildah", "PREFIX": "localhost/", "TAG": TAG, "PULL": "missing"}
    done = subprocess.run(
        [str(ROOT / "hack" / "images"), part],
        env=environment,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout.splitlines()[-1].split()[0]


def provide_base() -> None:
    """Where KUBE_ASSETS has a program that makes the public base image, it is made once."""
    maker = Path(os.environ.get("KUBE_ASSETS", "/nowhere")) / "base-image"
    if maker.is_file():
        subprocess.run([str(maker)], check=True, capture_output=True, timeout=BUILD_S)


def buildah(*args: str, timeout_s: float = RUN_S) -> str:
    """What it prints."""
    done = subprocess.run(["buildah", *args], capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Container:
    """A container of an image; each command is run as a user that the image has never heard of."""

    def __init__(self, image: str) -> None:
        self._name = buildah("from", "--pull=never", image)

    def run(self, *command: str, user: str = "12345:12345") -> subprocess.CompletedProcess[str]:
        """Run a command; the caller judges how it ended."""
        return subprocess.run(
            ["buildah", "run", "--isolation=chroot", f"--user={user}", self._name, "--", *command],
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )

    def output(self, *command: str) -> str:
        """What a command that must succeed prints."""
        done = self.run(*command)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def remove(self) -> None:
        """Leave nothing behind."""
        buildah("rm", self._name)
