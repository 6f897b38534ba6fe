"""Pixels to image files and base64."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image

from stage_runtime.core.outcome import Modality, Output
from stage_runtime.server.images.encoder import OutputFormat, to_base64, to_file


def picture(*pixels: tuple[int, ...], width: int = 2) -> Output:
    """Rows of `width` pixels, each with as many channels as given."""
    channels = len(pixels[0])
    data = bytes(value for pixel in pixels for value in pixel)
    return Output(
        modality=Modality.IMAGE, data=data, shape=(len(pixels) // width, width, channels), dtype="uint8"
    )


RED_GREEN = picture((255, 0, 0), (0, 255, 0), (0, 0, 255), (9, 8, 7))


def test_png_gives_back_each_pixel() -> None:
    image = Image.open(io.BytesIO(to_file(RED_GREEN, "png", 100)))
    assert (image.size, image.mode, image.tobytes()) == ((2, 2), "RGB", RED_GREEN.data)


@pytest.mark.parametrize("output_format", ["png", "jpeg", "webp"])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("compression", [0, 100])
def test_any_number_of_channels_goes_into_any_format(
    output_format: OutputFormat, channels: int, compression: int
) -> None:
    output = picture(*[(200,) * channels] * 64, width=8)
    image = Image.open(io.BytesIO(to_file(output, output_format, compression)))
    assert (image.format, image.size) == (output_format.upper(), (8, 8))


def test_a_two_dimensional_output_is_grey() -> None:
    output = Output(modality=Modality.IMAGE, data=bytes(range(6)), shape=(2, 3), dtype="uint8")
    image = Image.open(io.BytesIO(to_file(output, "png", 100)))
    assert (image.size, image.mode) == ((3, 2), "L")


def test_jpeg_shows_white_through_what_is_transparent() -> None:
    """Case B54."""
    output = picture(*[(10, 20, 30, 0)] * 64, width=8)
    image = Image.open(io.BytesIO(to_file(output, "jpeg", 100)))
    assert image.getpixel((4, 4)) == (255, 255, 255)


def test_lower_quality_gives_a_smaller_file() -> None:
    noise = picture(*[((i * 97) % 256, (i * 57) % 256, (i * 31) % 256) for i in range(4096)], width=64)
    assert len(to_file(noise, "jpeg", 10)) < len(to_file(noise, "jpeg", 90))


@pytest.mark.parametrize("size", [0, 1, 2, 3, (3 << 18) - 1, 3 << 18, (3 << 18) + 1])
def test_base64_in_parts_is_base64_of_the_whole(size: int) -> None:
    data = bytes(i % 251 for i in range(size))
    assert to_base64(data) == base64.b64encode(data)
