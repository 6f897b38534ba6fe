"""The whole walk on this machine: serve the embedded model, draw a dozen prompts at once, compare with plain diffusers.

Starts `omnistage run examples/shapes.yaml` on a free port, asks it through the official openai client, checks every
picture, stops it, and only then measures plain diffusers on the same prompts and seeds. Leaves the pictures and one
contact sheet in demo-output/, and nothing running.
"""

from __future__ import annotations

import base64
import io
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

# Both sides compute on one thread. Before torch is imported, and inherited by the stage.
os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "models" / "shapes"))

import numpy as np  # noqa: E402 - after the threads are set
import openai  # noqa: E402
import psutil  # noqa: E402
from PIL import Image, ImageDraw, ImageFont  # noqa: E402

from shapes_model.checker import check_picture  # noqa: E402

MANIFEST: Final = ROOT / "examples" / "shapes.yaml"
CHECKPOINT: Final = ROOT / "models" / "shapes" / "checkpoint"
OUTPUT: Final = ROOT / "demo-output"
START_LIMIT_S: Final = 120.0
STOP_LIMIT_S: Final = 30.0
PROMPTS: Final = (
    "a large red circle in the center on a white background",
    "a small blue square in the top left corner on a yellow background",
    "a large yellow heart in the middle on a purple background",
    "a small green triangle at the bottom on a pink background",
    "a large orange diamond on the right on a black background",
    "a small purple bar at the top on a white background",
    "a large cyan circle at the bottom left on a gray background",
    "a small black heart on the left on an orange background",
    "a small red circle left of a large blue heart on a white background",
    "a large green square above a small yellow circle on a black background",
    "a small white triangle below a large pink diamond on a blue background",
    "a large purple heart to the right of a small orange square on a cyan background",
)
STEPS: Final = 20
GUIDANCE: Final = 3.0
SIDE: Final = 64


@dataclass(frozen=True)
class Drawn:
    """What one side drew: a picture a prompt, uint8 [64, 64, 3], and the seconds for all of them."""

    pictures: tuple[np.ndarray, ...]
    seconds: float

    @property
    def rate(self) -> float:
        """Pictures per second."""
        return len(self.pictures) / self.seconds


def main() -> int:
    began_s = time.monotonic()
    OUTPUT.mkdir(exist_ok=True)
    with Stage(MANIFEST) as stage:
        served = draw_over_http(stage)
        size = stage.mean_wave_size()
    left = stage.left_running
    verdicts = [
        check_picture(picture, prompt) for picture, prompt in zip(served.pictures, PROMPTS, strict=True)
    ]
    for verdict, prompt in zip(verdicts, PROMPTS, strict=True):
        print(f"  {'✓' if verdict.ok else '✗'} {prompt}{'' if verdict.ok else f'  ({verdict.explain()})'}")
    right = [verdict.ok for verdict in verdicts]
    save(served.pictures, right)
    print(f"  {sum(right)} of {len(right)} show what was asked for")
    print(f"  {served.rate:.1f} pictures per second, {size:.1f} requests in a wave on average\n")
    compare(served, draw_with_diffusers())
    print(
        f"\npictures: {OUTPUT.relative_to(ROOT)}/, all together: {OUTPUT.relative_to(ROOT)}/contact-sheet.png"
    )
    print(f"left running: {', '.join(left) or 'nothing'}; {time.monotonic() - began_s:.0f} s in all")
    return 1 if left else 0


class Stage:
    """`omnistage run` as a child, ready between `with` and its end."""

    def __init__(self, manifest: Path) -> None:
        self.url = ""
        self.left_running: list[str] = []
        """What was still alive after the end."""
        self._command = [
            *(sys.executable, "-m", "stage_runtime.cli", "run", str(manifest.relative_to(ROOT))),
            *("--port", "0"),
        ]

    def __enter__(self) -> Stage:
        print(f"$ omnistage {' '.join(self._command[3:])}")
        self._log = (OUTPUT / "stage.log").open("w")
        self._child = subprocess.Popen(
            self._command, cwd=ROOT, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        try:
            self._wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        processes = [psutil.Process(self._child.pid)] if self._child.poll() is None else []
        processes += [one for parent in processes for one in parent.children(recursive=True)]
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._log.close()
        _, alive = psutil.wait_procs(processes, timeout=5)
        self.left_running = [f"process {one.pid}" for one in alive]

    def _wait_ready(self) -> None:
        """Follow what the stage says until it answers on /readyz with 200."""
        assert self._child.stdout is not None
        patience = threading.Timer(START_LIMIT_S, self._child.terminate)
        patience.start()
        for line in self._child.stdout:
            print(f"  {line.rstrip()}", flush=True)
            if found := re.search(r"http://\S+?:\d+", line):
                self.url = found.group()
            if "Ctrl-C" in line:  # its last words before it serves
                break
        patience.cancel()
        try:
            urllib.request.urlopen(f"{self.url}/readyz", timeout=5).close()
        except (urllib.error.URLError, ValueError):
            log = (OUTPUT / "stage.log").read_text()
            raise SystemExit(f"the stage did not get ready:\n{log}") from None

    def mean_wave_size(self) -> float:
        """Requests that ran together, on average over all waves so far."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        values = dict(re.findall(r"^omnistage_wave_size_(sum|count)\{.*\} (\S+)$", text, re.MULTILINE))
        return float(values["sum"]) / float(values["count"])


def draw_over_http(stage: Stage) -> Drawn:
    """Every prompt at once, each with its place as its seed."""
    print(f"\ndrawing {len(PROMPTS)} prompts at once through the openai client")
    with (
        openai.OpenAI(base_url=f"{stage.url}/v1", api_key="none", max_retries=0, timeout=60) as client,
        ThreadPoolExecutor(len(PROMPTS)) as threads,
    ):

        def draw(seed: int) -> np.ndarray:
            answer = client.images.generate(
                prompt=PROMPTS[seed],
                model="shapes",
                size=f"{SIDE}x{SIDE}",
                extra_body={"seed": seed, "num_inference_steps": STEPS, "guidance_scale": GUIDANCE},
            )
            assert answer.data is not None
            file = base64.b64decode(answer.data[0].b64_json or "")
            return np.asarray(Image.open(io.BytesIO(file)))

        began_s = time.perf_counter()
        pictures = tuple(threads.map(draw, range(len(PROMPTS))))
        return Drawn(pictures, time.perf_counter() - began_s)


def draw_with_diffusers() -> Drawn:
    """The same prompts and seeds by the pipeline alone, one after the other, once it is warm."""
    print("the same prompts and seeds with plain diffusers, one by one")
    import torch
    from diffusers import DiffusionPipeline

    pipeline: Any = DiffusionPipeline.from_pretrained(CHECKPOINT, dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)

    def draw(seed: int, steps: int = STEPS) -> np.ndarray:
        result = pipeline(
            PROMPTS[seed],
            negative_prompt="",
            true_cfg_scale=GUIDANCE,
            num_inference_steps=steps,
            height=SIDE,
            width=SIDE,
            generator=torch.Generator().manual_seed(seed),
        )
        return np.asarray(result.images[0])

    draw(0, steps=2)
    began_s = time.perf_counter()
    pictures = tuple(draw(seed) for seed in range(len(PROMPTS)))
    return Drawn(pictures, time.perf_counter() - began_s)


def compare(served: Drawn, alone: Drawn) -> None:
    print(
        f"  {alone.rate:.1f} pictures per second: the stage drew {served.rate / alone.rate:.1f} times as many,"
    )
    print("  each side on one thread, the stage with HTTP and PNG files, diffusers without")
    pairs = zip(served.pictures, alone.pictures, strict=True)
    differences = [int(np.abs(one.astype(int) - other.astype(int)).max()) for one, other in pairs]
    same = differences.count(0)
    print(
        f"  {same} of {len(differences)} pictures are the same to the last bit; "
        f"the largest difference in any pixel is {max(differences)} of 255"
    )


def save(pictures: Sequence[np.ndarray], right: Sequence[bool]) -> None:
    """One PNG a prompt, and all of them on a contact sheet."""
    for number, (picture, prompt) in enumerate(zip(pictures, PROMPTS, strict=True), start=1):
        name = f"{number:02}-{re.sub('[^a-z]+', '-', prompt)}.png"
        Image.fromarray(picture).save(OUTPUT / name)
    columns, scale, margin, caption = 4, 3, 16, 64
    width, height = SIDE * scale + margin, SIDE * scale + margin + caption
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * width + margin, rows * height + margin), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for place, (picture, prompt, ok) in enumerate(zip(pictures, PROMPTS, right, strict=True)):
        x, y = margin + place % columns * width, margin + place // columns * height
        big = Image.fromarray(picture).resize((SIDE * scale, SIDE * scale), Image.Resampling.NEAREST)
        sheet.paste(big, (x, y))
        pen.rectangle((x - 1, y - 1, x + SIDE * scale, y + SIDE * scale), outline="silver")
        below = y + SIDE * scale + 8
        mark(pen, x, below, ok)
        pen.multiline_text((x + 20, below - 2), textwrap.fill(prompt, 25), fill="black", font=font)
    sheet.save(OUTPUT / "contact-sheet.png")


def mark(pen: ImageDraw.ImageDraw, x: int, y: int, ok: bool) -> None:
    """A green tick or a red cross, 12 pixels wide."""
    if ok:
        pen.line((x, y + 6, x + 4, y + 11, x + 12, y), fill="green", width=3)
    else:
        pen.line((x, y, x + 11, y + 11), fill="red", width=3)
        pen.line((x, y + 11, x + 11, y), fill="red", width=3)


if __name__ == "__main__":
    sys.exit(main())
