"""Tiny pipelines of classes that make video."""

from __future__ import annotations

import diffusers
import transformers
from diffusers import DiffusionPipeline

from support.tiny_pipelines import LAYERS, wan
from support.tiny_text import WIDTH, clip_encoder, clip_tokenizer, qwen_tokenizer
from support.zoo_parts import OF_HEADS, flow, language_model, t5, umt5


def hunyuan_video() -> DiffusionPipeline:
    tokenizer = qwen_tokenizer()
    return diffusers.HunyuanVideoPipeline(
        tokenizer=tokenizer,
        text_encoder=language_model(transformers.LlamaConfig, transformers.LlamaModel, tokenizer),
        tokenizer_2=clip_tokenizer(),
        text_encoder_2=clip_encoder(projected=False),
        scheduler=flow(shift=7.0),
        vae=diffusers.AutoencoderKLHunyuanVideo(
            latent_channels=4,
            block_out_channels=(8, 8, 8, 8),
            layers_per_block=1,
            norm_num_groups=4,
            mid_block_add_attention=False,
        ),
        transformer=diffusers.HunyuanVideoTransformer3DModel(
            in_channels=4,
            out_channels=4,
            **OF_HEADS,
            num_layers=1,
            num_single_layers=1,
            num_refiner_layers=1,
            patch_size=2,
            patch_size_t=1,
            guidance_embeds=True,
            text_embed_dim=WIDTH,
            pooled_projection_dim=WIDTH,
            rope_axes_dim=(4, 6, 6),
        ),
    )


def allegro() -> DiffusionPipeline:
    return diffusers.AllegroPipeline(
        **t5(),
        scheduler=diffusers.EulerAncestralDiscreteScheduler(),
        vae=diffusers.AutoencoderKLAllegro(
            block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4, sample_size=32
        ),
        transformer=diffusers.AllegroTransformer3DModel(
            num_attention_heads=2,
            attention_head_dim=24,
            in_channels=4,
            out_channels=4,
            num_layers=1,
            cross_attention_dim=48,
            sample_width=8,
            sample_height=8,
            sample_frames=8,
            caption_channels=WIDTH,
        ),
    )


def ltx_condition() -> DiffusionPipeline:
    return diffusers.LTXConditionPipeline(
        **t5(),
        scheduler=flow(),
        vae=diffusers.AutoencoderKLLTXVideo(
            latent_channels=8,
            block_out_channels=(8, 8, 8, 8),
            decoder_block_out_channels=(8, 8, 8, 8),
            layers_per_block=(1, 1, 1, 1, 1),
            decoder_layers_per_block=(1, 1, 1, 1, 1),
        ),
        transformer=diffusers.LTXVideoTransformer3DModel(
            in_channels=8,
            out_channels=8,
            **OF_HEADS,
            cross_attention_dim=32,
            num_layers=1,
            caption_channels=WIDTH,
        ),
    )


def skyreels() -> DiffusionPipeline:
    parts = wan().components
    return diffusers.SkyReelsV2DiffusionForcingPipeline(
        **umt5(),
        vae=parts["vae"],
        scheduler=diffusers.UniPCMultistepScheduler(
            flow_shift=8.0, use_flow_sigmas=True, prediction_type="flow_prediction"
        ),
        transformer=diffusers.SkyReelsV2Transformer3DModel(
            **OF_HEADS,
            in_channels=4,
            out_channels=4,
            text_dim=WIDTH,
            freq_dim=32,
            ffn_dim=64,
            num_layers=LAYERS,
            cross_attn_norm=True,
            qk_norm="rms_norm_across_heads",
            rope_max_seq_len=32,
            inject_sample_info=False,
        ),
    )


def any_flow() -> DiffusionPipeline:
    return diffusers.AnyFlowPipeline(
        **umt5(),
        vae=wan().components["vae"],
        scheduler=diffusers.FlowMapEulerDiscreteScheduler(),
        transformer=diffusers.AnyFlowTransformer3DModel(
            **OF_HEADS,
            in_channels=4,
            out_channels=4,
            text_dim=WIDTH,
            freq_dim=32,
            ffn_dim=64,
            num_layers=LAYERS,
            rope_max_seq_len=32,
        ),
    )


def helios() -> DiffusionPipeline:
    return diffusers.HeliosPipeline(
        **umt5(),
        vae=wan().components["vae"],
        scheduler=diffusers.HeliosScheduler(stages=1, stage_range=[0, 1]),
        transformer=diffusers.HeliosTransformer3DModel(
            **OF_HEADS,
            in_channels=4,
            out_channels=4,
            text_dim=WIDTH,
            freq_dim=32,
            ffn_dim=64,
            num_layers=LAYERS,
            rope_dim=(4, 6, 6),
        ),
    )


def wan_vace() -> DiffusionPipeline:
    parts = wan().components
    return diffusers.WanVACEPipeline(
        **{key: parts[key] for key in ("tokenizer", "text_encoder", "scheduler")},
        vae=diffusers.AutoencoderKLWan(
            base_dim=4,
            z_dim=4,
            dim_mult=[1, 1, 1],
            num_res_blocks=1,
            temperal_downsample=[True, True],
            latents_mean=[0.0] * 4,
            latents_std=[1.0] * 4,
            scale_factor_temporal=4,
            scale_factor_spatial=4,
        ),
        transformer=diffusers.WanVACETransformer3DModel(
            **OF_HEADS,
            in_channels=4,
            out_channels=4,
            text_dim=WIDTH,
            freq_dim=32,
            ffn_dim=64,
            num_layers=LAYERS,
            rope_max_seq_len=32,
            vace_layers=[0],
            vace_in_channels=2 * 4 + 4 * 4,
        ),
    )
