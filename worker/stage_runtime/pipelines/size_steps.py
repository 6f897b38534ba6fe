"""By what a checkpoint's sizes go: its VAE's factors in space and time and its denoiser's patch, from their configs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from stage_runtime.pipelines.call_signature import SizeTerm
from stage_runtime.pipelines.contract import Checkpoint

Config = Mapping[str, object]

IN_SPACE: Final = ("spatial_compression_ratio", "scale_factor_spatial", "vae_scale_factor")
"""Keys that say it outright."""
IN_TIME: Final = ("temporal_compression_ratio", "scale_factor_temporal")
LEVELS: Final = ("encoder_block_out_channels", "block_out_channels", "down_block_types")
"""One entry a level of which all but one halve each side."""
HALVINGS: Final = ("temperal_downsample", "temporal_downsample", "spatio_temporal_scaling")
"""One entry a level of which each halves the sides; time where the entry says so."""


class SizeSteps(NamedTuple):
    """`side`: width and height are multiples of it. `frames`: a count is 1 more than a multiple of it."""

    side: int
    frames: int


def size_steps(checkpoint: Checkpoint, terms: Iterable[SizeTerm]) -> SizeSteps | None:
    """Steps of sizes of a checkpoint, `terms` being what its class divides sizes by; None where no VAE says any."""
    configs = [checkpoint.config(name) for name, value in checkpoint.index.items() if _is_part(value)]
    vaes = [config for config in configs if _is_autoencoder(config)]
    factor = max((_in_space(config) or 0 for config in vaes), default=0)
    if not factor:
        return None
    patch = max((_patch(config, vaes) for config in configs if config not in vaes), default=1)
    sides = [t.times * (factor if t.scaled else 1) * (patch if t.patched else 1) for t in terms]
    return SizeSteps(math.lcm(factor * patch, *sides), max((_in_time(config) for config in vaes), default=1))


def _is_part(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[1], str)


def _is_autoencoder(config: Config) -> bool:
    name = str(config.get("_class_name", ""))
    return "Autoencoder" in name or "VQ" in name


def _in_space(config: Config) -> int | None:
    if (said := _first_whole(config, IN_SPACE)) is not None:
        return said
    patch = _whole(config.get("patch_size")) or 1
    for key in HALVINGS:
        if isinstance(levels := config.get(key), Sequence):
            halved = sum(map(bool, levels)) if key == "spatio_temporal_scaling" else len(levels)
            return int(patch * 2**halved)
    for key in LEVELS:
        if isinstance(levels := config.get(key), Sequence):
            factor = 2 ** (len(levels) - 1)
            # one that norms by its latents has pictures of the square of it
            return int(factor**2 if config.get("norm_type") == "spatial" else factor * patch)
    return None


def _in_time(config: Config) -> int:
    if (said := _first_whole(config, IN_TIME)) is not None:
        return said
    for key in HALVINGS:
        if isinstance(levels := config.get(key), Sequence):
            return int((_whole(config.get("patch_size_t")) or 1) * 2 ** sum(map(bool, levels)))
    return 1


def _patch(config: Config, vaes: Sequence[Config]) -> int:
    """Latents a side that the denoiser takes together: as it says, or as its channels are more than the VAE's."""
    said = config.get("patch_size") or config.get("all_patch_size")
    patch = (
        max((size for size in map(_whole, said[-2:])), default=1) if isinstance(said, list) else _whole(said)
    )
    channels, taken = 0, _whole(config.get("in_channels")) or 0
    for vae in vaes:
        channels = channels or _first_whole(vae, ("latent_channels", "z_dim")) or 0
    packed = math.isqrt(taken // channels) if channels and taken and taken % channels == 0 else 1
    exact = packed if channels and packed * packed * channels == taken else 1
    return max(patch or 1, exact)


def _first_whole(config: Config, keys: Iterable[str]) -> int | None:
    return next((number for key in keys if (number := _whole(config.get(key)))), None)


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
