"""What a part's folder holds, as far as names and headers tell: its weights' shapes, before one number is read.

A file that is missing, a link to nowhere, cut off, or no weights at all is named here, with what is wrong with it.
Loads no torch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stage_runtime.core.errors import ModelError
from stage_runtime.pipelines.contract import read_json_object

LONGEST_HEADER: Final = 100_000_000
"""Bytes, as the format itself has it."""
BITS: Final = {
    bits: names.split()
    for bits, names in {
        4: "F4",
        6: "F6_E2M3 F6_E3M2",
        8: "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
        16: "I16 U16 F16 BF16",
        32: "I32 U32 F32",
        64: "I64 U64 F64 C64",
    }.items()
}
"""Of one number, by the format's names."""
BITS_OF: Final = {name: bits for bits, names in BITS.items() for name in names}
POINTER: Final = b"version https://git-lfs"
PICKLES: Final = (".bin", ".ckpt", ".pt", ".pth", ".msgpack", ".h5")


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one part, from their headers."""

    variant: str | None
    """What stands in the files' names beside the usual, such as "fp16"; None for the usual names."""
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def numbers(self) -> int:
        """How many numbers they are together."""
        return sum(math.prod(shape) for shape in self.shapes.values())


def need_file(path: Path, what: str) -> Path:
    """`path`, which is a file. Raises: ModelError naming it, and where it points to if it is a link to nowhere."""
    if path.is_file():
        return path
    if path.is_symlink() and not path.exists():
        raise ModelError(f"{what}: {path} is a link to {path.readlink()}, which isn't there")
    raise ModelError(f"{what}: {path} is {'no file' if path.exists() else 'missing'}")


def need_folder(path: Path, what: str) -> Path:
    """`path`, a folder without links to nowhere. Raises: ModelError naming it, or the link and its target."""
    if path.is_symlink() and not path.exists():
        raise ModelError(f"{what}: {path} is a link to {path.readlink()}, which isn't there")
    if not path.is_dir():
        raise ModelError(f"{what}: {path} is {'no folder' if path.exists() else 'missing'}")
    for inner in sorted(path.iterdir()):
        if inner.is_symlink() and not inner.exists():
            raise ModelError(f"{what}: {inner} is a link to {inner.readlink()}, which isn't there")
    return path


def read_weights(folder: Path, stem: str, what: str) -> Weights:
    """The weights in `folder` that are called `stem`, of the usual names or else of the one variant that there is.

    Raises: ModelError that names the file at fault, the variants there are to choose from, or what is there instead.
    """
    variants = _variants(folder, stem)
    if not variants:
        raise ModelError(f"{what}: {_nothing(folder, stem)}")
    if None not in variants and len(variants) > 1:
        named = ", ".join(sorted(str(one) for one in variants))
        raise ModelError(
            f"{what}: {folder} has no {stem}.safetensors and several variants of it ({named}); leave one there"
        )
    variant = None if None in variants else next(iter(variants))
    shapes: dict[str, tuple[int, ...]] = {}
    for file in _files(folder, variants[variant], what):
        shapes.update(_header(file, what))
    return Weights(variant, shapes)


def _variants(folder: Path, stem: str) -> dict[str | None, Path]:
    """Variant → its one file, or the index of its shards where there is no such file."""
    whole = re.compile(rf"{re.escape(stem)}(?:\.(?P<variant>[\w-]+))?\.safetensors")
    index = re.compile(rf"{re.escape(stem)}\.safetensors\.index(?:\.(?P<variant>[\w-]+))?\.json")
    shard = re.compile(r".*-\d{5}-of-\d{5}")
    found: dict[str | None, Path] = {}
    for pattern in (index, whole):
        for path in sorted(folder.iterdir()):
            match = pattern.fullmatch(path.name)
            if match and not shard.fullmatch(path.name.removesuffix(".safetensors")):
                found[match["variant"]] = path
    return found


def _files(folder: Path, file: Path, what: str) -> Iterator[Path]:
    if file.suffix != ".json":
        yield need_file(file, what)
        return
    index = read_json_object(need_file(file, what))
    placed = index.get("weight_map")
    if not isinstance(placed, dict) or not placed or not all(isinstance(n, str) for n in placed.values()):
        raise ModelError(f"{what}: {file} has no weight_map from weights to files")
    if not isinstance(index.get("metadata"), dict):
        raise ModelError(f"{what}: {file} has no metadata, which loaders ask for")
    if outside := sorted(
        name for name in placed.values() if {"", ".."} & set(Path(name).parts) or name[:1] in "/"
    ):
        raise ModelError(f"{what}: {file} names {outside[0]!r}, which is no file of its folder")
    for name in sorted(set(placed.values())):
        yield need_file(folder / name, what)


def _nothing(folder: Path, stem: str) -> str:
    """What is there in place of the weights."""
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES)
    if pickles:
        return (
            f"{folder} has its weights as {', '.join(pickles[:3])} only, a format that can run code and isn't read; "
            "save the model with safe_serialization"
        )
    others = sorted(path.name for path in folder.glob("*.safetensors*"))
    beside = f" (there are {', '.join(others[:3])})" if others else ""
    return f"{folder / f'{stem}.safetensors'} is missing{beside}"


def _header(file: Path, what: str) -> dict[str, tuple[int, ...]]:
    """Shapes by name. Raises: ModelError saying why the file can't hold what it says."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        start = stream.read(len(POINTER))
        if start == POINTER:
            raise ModelError(f"{what}: {file} is a pointer of git-lfs and not the file itself")
        stream.seek(8)
        length = int.from_bytes(start[:8], "little")
        if size < 8 or not 2 <= length <= LONGEST_HEADER:
            raise ModelError(f"{what}: {file} is no safetensors file ({size} bytes)")
        text = stream.read(length)
    try:
        header = json.loads(text)
        about = header.pop("__metadata__", {})
        if not all(isinstance(value, str) for value in about.values()):
            raise ValueError
        shapes = {name: tuple(map(int, entry["shape"])) for name, entry in header.items()}
        places = {name: tuple(map(int, entry["data_offsets"])) for name, entry in header.items()}
        end = 8 + length + max((last for _, last in places.values()), default=0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        cut = "is cut off in its header" if 8 + length > size else "has a broken header"
        raise ModelError(f"{what}: {file} {cut} ({type(error).__name__})") from None
    if end != size:
        how = "is cut off" if size < end else "has more than it says"
        raise ModelError(f"{what}: {file} {how}: {size} bytes, and its header speaks of {end}")
    kinds = {name: entry.get("dtype") for name, entry in header.items()}
    _check_places(places, kinds, shapes, f"{what}: {file}")
    return shapes


def _check_places(
    places: Mapping[str, tuple[int, ...]],
    kinds: Mapping[str, object],
    shapes: Mapping[str, tuple[int, ...]],
    where: str,
) -> None:
    """Each tensor takes the bytes that its numbers need, one after the other. Raises: ModelError."""
    reached = 0
    for name, (first, last) in sorted(places.items(), key=lambda place: place[1]):
        kind, shape = kinds[name], shapes[name]
        bits = BITS_OF.get(kind) if isinstance(kind, str) else None
        if bits is None:
            raise ModelError(f"{where} says that {name} is of the unknown number format {kind!r}")
        if min(shape, default=0) < 0 or math.prod(shape) * bits != 8 * (last - first):
            raise ModelError(
                f"{where} says that {name} is {kind} of shape {list(shape)}, and gives it {last - first} bytes"
            )
        if first != reached:
            raise ModelError(f"{where} has {name} at byte {first}, where byte {reached} is the next")
        reached = last


def need_config(folder: Path, file_name: str, marks: tuple[str, ...], what: str) -> Mapping[str, Any]:
    """A part's config, which says itself what it is of by one of `marks`.

    One that doesn't would be filled up with a class's defaults, billions of weights among them.

    Raises: ModelError naming the file.
    """
    file = need_file(folder / file_name, what)
    config = read_json_object(file)
    if not any(isinstance(config.get(mark), str) for mark in marks):
        raise ModelError(f"{what}: {file} doesn't say what it is of; expected {' or '.join(marks)} in it")
    return config
