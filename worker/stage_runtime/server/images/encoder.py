"""Pixels to files and files to base64, on threads of their own so that probes and other requests are answered.

Decides nothing about requests; knows no engine.
"""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal

from PIL import Image

from stage_runtime.core.outcome import Output

OutputFormat = Literal["png", "jpeg", "webp"]

FLATTEN_ON: Final = (255, 255, 255)  # JPEG has no transparency: white shows through
ENCODE_THREADS: Final = 2

_MODES: Final = {1: "L", 3: "RGB", 4: "RGBA"}
_PNG_LEVEL: Final = 3  # zlib; 6 takes twice as long for files a few percent smaller
_BASE64_CHUNK: Final = 3 << 18
"""Bytes encoded while the interpreter's lock is held; a multiple of 3, so that the parts join."""


class Encoder:
    """Encodes on at most `ENCODE_THREADS` threads. `close()` joins them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(ENCODE_THREADS, thread_name_prefix="encode")

    async def base64_image(self, output: Output, output_format: OutputFormat, compression: int) -> bytes:
        """The image file in base64."""
        return await self._run(lambda: to_base64(to_file(output, output_format, compression)))

    async def _run(self, work: Callable[[], bytes]) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """What waits for a thread is dropped; what runs is waited for."""
        self._threads.shutdown(cancel_futures=True)


def to_file(output: Output, output_format: OutputFormat, compression: int) -> bytes:
    """The bytes of an image file. `compression` is the quality of JPEG and WebP, 0 to 100; PNG is lossless."""
    image = _image(output)
    file = io.BytesIO()
    match output_format:
        case "png":
            image.save(file, "PNG", compress_level=_PNG_LEVEL)
        case "jpeg":
            _flattened(image).save(file, "JPEG", quality=compression)
        case "webp":
            image.save(file, "WEBP", quality=compression, method=2)
    return file.getvalue()


def to_base64(data: bytes) -> bytes:
    """Base64 of `data`, giving other threads a turn every megabyte."""
    view = memoryview(data)
    return b"".join(
        base64.b64encode(view[at : at + _BASE64_CHUNK]) for at in range(0, len(view), _BASE64_CHUNK)
    )


def _image(output: Output) -> Image.Image:
    height, width, *rest = output.shape
    return Image.frombytes(_MODES[rest[0] if rest else 1], (width, height), output.data)


def _flattened(image: Image.Image) -> Image.Image:
    if image.mode != "RGBA":
        return image
    ground = Image.new("RGB", image.size, FLATTEN_ON)
    ground.paste(image, mask=image.getchannel("A"))
    return ground
