"""Tiny pipelines of the classes that differ most from the ones in `tiny_pipelines`, one function a class.

They are what the sweep over pipelines goes through; each is saved and loaded as a checkpoint is. What is not said is
as small as its class allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import diffusers
import transformers
from diffusers import DiffusionPipeline

from support.tiny_pipelines import HEAD_SIZE, HEADS, LAYERS, image_vae
from support.tiny_text import WIDTH, clip_encoder, clip_tokenizer, qwen_tokenizer, qwen_vl_encoder
from support.zoo_parts import LANGUAGE_MODEL, OF_HEADS, flow, language_model, t5
from support.zoo_unets import (
    ace_step,
    animate_diff,
    kandinsky_2_2_prior,
    kandinsky_prior,
    ldm3d,
    ltx_2,
    stable_cascade_prior,
    stable_diffusion,
    stable_diffusion_controlnet,
    stable_diffusion_pag,
    stable_diffusion_xl_pag,
    text_to_video_zero,
    unclip,
)
from support.zoo_videos import (
    allegro,
    any_flow,
    helios,
    hunyuan_video,
    ltx_condition,
    skyreels,
    wan_vace,
)


def _qwen() -> dict[str, Any]:
    tokenizer = qwen_tokenizer()
    return {"tokenizer": tokenizer, "text_encoder": qwen_vl_encoder(len(tokenizer))}


def _gemma2() -> dict[str, Any]:
    tokenizer = qwen_tokenizer()
    encoder = language_model(transformers.Gemma2Config, transformers.Gemma2Model, tokenizer)
    return {"tokenizer": tokenizer, "text_encoder": encoder}


def kandinsky_5() -> DiffusionPipeline:
    return diffusers.Kandinsky5T2IPipeline(
        **_qwen(),
        text_encoder_2=clip_encoder(projected=False),
        tokenizer_2=clip_tokenizer(),
        vae=image_vae(
            shift_factor=None,
            block_out_channels=(4, 4, 4, 4),
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
        ),
        scheduler=flow(),
        transformer=diffusers.Kandinsky5Transformer3DModel(
            in_visual_dim=4,
            out_visual_dim=4,
            in_text_dim=WIDTH,
            in_text_dim2=WIDTH,
            time_dim=32,
            model_dim=32,
            ff_dim=64,
            num_text_blocks=1,
            num_visual_blocks=LAYERS,
            axes_dims=(4, 6, 6),
        ),
    )


def _dc() -> Any:
    """Each side of its latents is half of the picture's."""
    return diffusers.AutoencoderDC(
        latent_channels=4,
        attention_head_dim=2,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=(1, 1),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
        upsample_block_type="interpolate",
        downsample_block_type="stride_conv",
        decoder_norm_types="rms_norm",
        decoder_act_fns="silu",
        scaling_factor=0.41407,
    )


def _sana_transformer(**settings: Any) -> Any:
    return diffusers.SanaTransformer2DModel(
        patch_size=1,
        in_channels=4,
        out_channels=4,
        num_layers=LAYERS,
        attention_head_dim=HEAD_SIZE,
        num_attention_heads=HEADS,
        num_cross_attention_heads=HEADS,
        cross_attention_head_dim=HEAD_SIZE,
        cross_attention_dim=HEADS * HEAD_SIZE,
        caption_channels=WIDTH,
        sample_size=32,
        **settings,
    )


def sana() -> DiffusionPipeline:
    return diffusers.SanaPipeline(
        **_gemma2(), vae=_dc(), transformer=_sana_transformer(), scheduler=flow(shift=7.0)
    )


def sana_pag() -> DiffusionPipeline:
    return diffusers.SanaPAGPipeline(
        **_gemma2(),
        vae=_dc(),
        transformer=_sana_transformer(),
        scheduler=flow(),
        pag_applied_layers=["transformer_blocks.0"],
    )


def sana_sprint() -> DiffusionPipeline:
    return diffusers.SanaSprintPipeline(
        **_gemma2(),
        vae=_dc(),
        transformer=_sana_transformer(guidance_embeds=True, qk_norm="rms_norm_across_heads"),
        scheduler=diffusers.SCMScheduler(),
    )


def hunyuan_image() -> DiffusionPipeline:
    tokenizer = qwen_tokenizer()
    return diffusers.HunyuanImagePipeline(
        tokenizer=tokenizer,
        text_encoder=transformers.Qwen2_5_VLForConditionalGeneration(
            _deeper(qwen_vl_encoder(len(tokenizer)).config, 3)
        ),
        tokenizer_2=transformers.ByT5Tokenizer(),
        text_encoder_2=transformers.T5EncoderModel(
            transformers.T5Config(vocab_size=384, d_model=WIDTH, d_kv=16, d_ff=64, num_layers=1, num_heads=2)
        ),
        scheduler=flow(shift=7.0),
        vae=diffusers.AutoencoderKLHunyuanImage(
            in_channels=3,
            out_channels=3,
            latent_channels=4,
            block_out_channels=(32, 32, 32, 32, 32, 32),
            layers_per_block=1,
            spatial_compression_ratio=32,
            sample_size=128,
            scaling_factor=0.75,
        ),
        transformer=diffusers.HunyuanImageTransformer2DModel(
            in_channels=4,
            out_channels=4,
            **OF_HEADS,
            num_layers=1,
            num_single_layers=1,
            num_refiner_layers=1,
            patch_size=(1, 1),
            text_embed_dim=WIDTH,
            text_embed_2_dim=WIDTH,
            rope_axes_dim=(8, 8),
        ),
        guider=diffusers.AdaptiveProjectedMixGuidance(),
        ocr_guider=diffusers.AdaptiveProjectedMixGuidance(),
    )


def _deeper(config: Any, layers: int) -> Any:
    config.text_config.num_hidden_layers = layers
    config.text_config.layer_types = ["full_attention"] * layers
    return config


def bria_fibo() -> DiffusionPipeline:
    tokenizer = qwen_tokenizer()
    config = transformers.SmolLM3Config(
        vocab_size=128256, **(LANGUAGE_MODEL | {"num_hidden_layers": LAYERS, "pad_token_id": 1})
    )
    return diffusers.BriaFiboPipeline(
        tokenizer=tokenizer,
        text_encoder=transformers.SmolLM3ForCausalLM(config),
        scheduler=flow(),
        vae=diffusers.AutoencoderKLWan(
            base_dim=8,
            decoder_base_dim=8,
            z_dim=4,
            dim_mult=[1, 1, 1, 1],
            num_res_blocks=1,
            temperal_downsample=[False, True, True],
            latents_mean=[0.0] * 4,
            latents_std=[1.0] * 4,
            patch_size=2,
            in_channels=12,
            out_channels=12,
            is_residual=True,
            scale_factor_spatial=16,
        ),
        transformer=diffusers.BriaFiboTransformer2DModel(
            in_channels=4,
            **OF_HEADS,
            num_layers=1,
            num_single_layers=1,
            joint_attention_dim=2 * WIDTH,
            text_encoder_dim=WIDTH,
            axes_dims_rope=[4, 6, 6],
        ),
    )


def prx() -> DiffusionPipeline:
    return diffusers.PRXPipeline(
        **t5(),
        scheduler=flow(),
        vae=_dc(),
        transformer=diffusers.PRXTransformer2DModel(
            in_channels=4,
            patch_size=1,
            context_in_dim=WIDTH,
            hidden_size=32,
            num_heads=2,
            depth=LAYERS,
            axes_dim=[8, 8],
        ),
    )


def flux_2_klein_kv() -> DiffusionPipeline:
    tokenizer = qwen_tokenizer()
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer), **(LANGUAGE_MODEL | {"num_hidden_layers": 28})
    )
    return diffusers.Flux2KleinKVPipeline(
        tokenizer=tokenizer,
        text_encoder=transformers.Qwen3ForCausalLM(config),
        scheduler=flow(),
        vae=diffusers.AutoencoderKLFlux2(
            block_out_channels=(8, 8),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            layers_per_block=1,
            latent_channels=4,
            norm_num_groups=4,
            sample_size=32,
        ),
        transformer=diffusers.Flux2Transformer2DModel(
            in_channels=16,
            **OF_HEADS,
            num_layers=1,
            num_single_layers=1,
            joint_attention_dim=3 * WIDTH,
            axes_dims_rope=(4, 4, 4, 4),
            guidance_embeds=False,
        ),
    )


ZOO: Final[dict[str, Callable[[], DiffusionPipeline]]] = {
    build.__name__: build
    for build in (
        kandinsky_5,
        ltx_2,
        text_to_video_zero,
        kandinsky_prior,
        kandinsky_2_2_prior,
        stable_cascade_prior,
        ldm3d,
        ace_step,
        any_flow,
        helios,
        wan_vace,
        ltx_condition,
        unclip,
        allegro,
        hunyuan_video,
        sana,
        sana_pag,
        sana_sprint,
        bria_fibo,
        hunyuan_image,
        prx,
        skyreels,
        animate_diff,
        stable_diffusion,
        stable_diffusion_controlnet,
        stable_diffusion_pag,
        stable_diffusion_xl_pag,
        flux_2_klein_kv,
    )
}
