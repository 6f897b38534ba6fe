"""The parts of the model at random weights, from configurations only."""

from __future__ import annotations

import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

LATENT_CHANNELS = 8
TEXT_WIDTH = 64
GATE_AT_START = 0.5


def new_autoencoder() -> AutoencoderKLQwenImage:
    """64 x 64 x 3 -> 8 x 16 x 16. The video axis stays at one frame."""
    return AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=LATENT_CHANNELS,
        dim_mult=[1, 2, 4],
        num_res_blocks=1,
        attn_scales=[],
        temperal_downsample=[False, False],
        latents_mean=[0.0] * LATENT_CHANNELS,
        latents_std=[1.0] * LATENT_CHANNELS,
    )


def new_text_encoder(vocabulary: int) -> Qwen2_5_VLForConditionalGeneration:
    """Two layers of width 64. The vision tower has to exist; it is never used, so it is tiny and stays untrained."""
    heads = 4
    half_head = TEXT_WIDTH // heads // 2
    spatial = half_head // 3
    text = {
        "vocab_size": vocabulary,
        "hidden_size": TEXT_WIDTH,
        "intermediate_size": 3 * TEXT_WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "bos_token_id": 0,
        "eos_token_id": vocabulary - 1,
        "pad_token_id": 0,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [half_head - 2 * spatial, spatial, spatial],
        },
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_heads": 2,
        "patch_size": 14,
        "out_hidden_size": TEXT_WIDTH,
        "fullatt_block_indexes": [0],
        "window_size": 56,
    }
    encoder = Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config=text,
            vision_config=vision,
            image_token_id=vocabulary - 4,
            video_token_id=vocabulary - 5,
            vision_start_token_id=vocabulary - 6,
            vision_end_token_id=vocabulary - 7,
            tie_word_embeddings=True,
        )
    )
    encoder.model.visual.requires_grad_(False)
    return encoder


def new_denoiser() -> QwenImageTransformer2DModel:
    """Six blocks of four heads x 32. Modulation starts as the identity with half-open gates, the output at zero."""
    denoiser = QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=4 * LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        num_layers=6,
        attention_head_dim=32,
        num_attention_heads=4,
        joint_attention_dim=TEXT_WIDTH,
        axes_dims_rope=(8, 12, 12),
    )
    width = denoiser.inner_dim
    modulations = [mod[1] for block in denoiser.transformer_blocks for mod in (block.img_mod, block.txt_mod)]
    for layer in (*modulations, denoiser.proj_out, denoiser.norm_out.linear):
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    for layer in modulations:  # rows: shift, scale, gate of attention; shift, scale, gate of the MLP
        layer.bias.data[2 * width : 3 * width] = GATE_AT_START
        layer.bias.data[5 * width : 6 * width] = GATE_AT_START
    return denoiser


def new_pipeline(
    denoiser: QwenImageTransformer2DModel,
    text_encoder: Qwen2_5_VLForConditionalGeneration,
    autoencoder: AutoencoderKLQwenImage,
    tokenizer: Qwen2Tokenizer,
) -> QwenImagePipeline:
    """The scheduler's shift is 1: any other makes few steps much worse on pictures this small."""
    pipeline = QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0, use_dynamic_shifting=False),
        vae=autoencoder,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        transformer=denoiser,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
