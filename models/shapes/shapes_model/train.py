"""The whole recipe, from nothing to a checkpoint: VAE, then denoiser and text encoder, then assembly.

    PYTHONPATH=models/shapes python -m shapes_model.train --out RUN

Two processes of one thread each. Stopped and started again with the same folder, it goes on from its last snapshot.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
from pathlib import Path

RANKS = 2
VAE_STEPS = 3000
DENOISER_STEPS = 14_000
DENOISER_HOLD_UNTIL = 7000


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(module: str, out: Path, arguments: list[str]) -> None:
    """Run the module once a rank; logs go to `out`, process ids to `out`/pids. Raises if a rank fails."""
    out.mkdir(parents=True, exist_ok=True)
    shared = os.environ | {
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-u", "-m", module, "--out", str(out), *arguments]
    processes = []
    for rank in range(RANKS):
        with (out / f"rank{rank}.log").open("a") as log:
            environment = shared | {"RANK": str(rank)}
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    (out / "pids").write_text("".join(f"{process.pid}\n" for process in processes))
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"{module} failed with {codes}; see {out}/rank*.log")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for logs, snapshots and the checkpoint"
    )
    out = parser.parse_args().out
    vae, denoiser = out / "vae", out / "denoiser"
    if not (vae / "config.json").exists():
        run_ranks("shapes_model.train_vae", vae, ["--steps", str(VAE_STEPS)])
    if not (denoiser / "text_encoder" / "config.json").exists():
        length = ["--steps", str(DENOISER_STEPS), "--hold-until", str(DENOISER_HOLD_UNTIL)]
        run_ranks("shapes_model.train_denoiser", denoiser, ["--vae", str(vae), *length])
    from shapes_model.assemble import assemble

    assemble(out, out / "checkpoint")


if __name__ == "__main__":
    main()
