"""Tiny pipelines around U-Nets, and priors, and those that make sound beside or instead of pictures."""

from __future__ import annotations

from typing import Any, Final

import diffusers
import transformers
from diffusers import DiffusionPipeline

from support.tiny_pipelines import LAYERS, image_vae, stable_diffusion_xl
from support.tiny_text import (
    WIDTH,
    clip_encoder,
    clip_tokenizer,
    qwen_tokenizer,
)

_UNET: Final[dict[str, Any]] = {
    "sample_size": 16,
    "in_channels": 4,
    "out_channels": 4,
    "layers_per_block": 1,
    "block_out_channels": (8, 16),
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": WIDTH,
    "attention_head_dim": 2,
    "norm_num_groups": 4,
}


def _sd_vae(**overrides: Any) -> Any:
    return image_vae(shift_factor=None, **overrides)


def _ddim() -> Any:
    return diffusers.DDIMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False, steps_offset=1
    )


def _sd(**overrides: Any) -> dict[str, Any]:
    parts = {
        "tokenizer": clip_tokenizer(),
        "text_encoder": clip_encoder(projected=False),
        "vae": _sd_vae(),
        "unet": diffusers.UNet2DConditionModel(**_UNET),
        "scheduler": _ddim(),
        "safety_checker": None,
        "feature_extractor": None,
    }
    return parts | overrides


def _checked(kind: Any, **overrides: Any) -> DiffusionPipeline:
    return kind(**_sd(**overrides), requires_safety_checker=False)


def stable_diffusion() -> DiffusionPipeline:
    return _checked(diffusers.StableDiffusionPipeline, image_encoder=None)


def stable_diffusion_pag() -> DiffusionPipeline:
    return _checked(diffusers.StableDiffusionPAGPipeline, image_encoder=None)


def stable_diffusion_xl_pag() -> DiffusionPipeline:
    parts = stable_diffusion_xl().components
    return diffusers.StableDiffusionXLPAGPipeline(**parts, add_watermarker=False)


def ldm3d() -> DiffusionPipeline:
    return _checked(
        diffusers.StableDiffusionLDM3DPipeline,
        image_encoder=None,
        vae=_sd_vae(in_channels=6, out_channels=6),
    )


def text_to_video_zero() -> DiffusionPipeline:
    return _checked(diffusers.TextToVideoZeroPipeline)


def _controlnet(**overrides: Any) -> Any:
    shared = {key: value for key, value in _UNET.items() if key not in ("sample_size", "out_channels")}
    shared.pop("up_block_types")
    return diffusers.ControlNetModel(
        **(shared | {"conditioning_embedding_out_channels": (16, 32)} | overrides)
    )


def stable_diffusion_controlnet() -> DiffusionPipeline:
    return _checked(diffusers.StableDiffusionControlNetPipeline, image_encoder=None, controlnet=_controlnet())


def animate_diff() -> DiffusionPipeline:
    parts = _sd()
    del parts["safety_checker"]
    adapter = diffusers.MotionAdapter(
        block_out_channels=(8, 16),
        motion_layers_per_block=1,
        motion_num_attention_heads=2,
        motion_norm_num_groups=4,
        use_motion_mid_block=False,
    )
    return diffusers.AnimateDiffPipeline(**parts, motion_adapter=adapter)


def _vision(projected: int) -> Any:
    return transformers.CLIPVisionModelWithProjection(
        transformers.CLIPVisionConfig(
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=16,
            patch_size=8,
            projection_dim=projected,
        )
    )


def _pictures() -> Any:
    return transformers.CLIPImageProcessor(crop_size=16, size={"shortest_edge": 16})


def _prior(embeddings: int = 77) -> Any:
    return diffusers.PriorTransformer(
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=1,
        embedding_dim=WIDTH,
        num_embeddings=embeddings,
        additional_embeddings=4,
    )


def kandinsky_prior() -> DiffusionPipeline:
    return diffusers.KandinskyPriorPipeline(**_prior_parts())


def kandinsky_2_2_prior() -> DiffusionPipeline:
    return diffusers.KandinskyV22PriorPipeline(**_prior_parts())


def _prior_parts() -> dict[str, Any]:
    return {
        "prior": _prior(),
        "image_encoder": _vision(WIDTH),
        "text_encoder": clip_encoder(projected=True),
        "tokenizer": clip_tokenizer(),
        "scheduler": diffusers.UnCLIPScheduler(prediction_type="sample", num_train_timesteps=1000),
        "image_processor": _pictures(),
    }


def stable_cascade_prior() -> DiffusionPipeline:
    return diffusers.StableCascadePriorPipeline(
        tokenizer=clip_tokenizer(),
        text_encoder=clip_encoder(projected=True),
        scheduler=diffusers.DDPMWuerstchenScheduler(),
        prior=diffusers.models.StableCascadeUNet(
            in_channels=4,
            out_channels=4,
            timestep_ratio_embedding_dim=16,
            conditioning_dim=WIDTH,
            block_out_channels=(32,),
            num_attention_heads=(2,),
            down_num_layers_per_block=(1,),
            up_num_layers_per_block=(1,),
            down_blocks_repeat_mappers=(1,),
            up_blocks_repeat_mappers=(1,),
            block_types_per_layer=(("SDCascadeResBlock", "SDCascadeTimestepBlock", "SDCascadeAttnBlock"),),
            clip_text_in_channels=WIDTH,
            clip_text_pooled_in_channels=WIDTH,
            clip_image_in_channels=WIDTH,
            switch_level=(False,),
            dropout=(0.1,),
            timestep_conditioning_type=("sca", "crp"),
        ),
    )


def unclip() -> DiffusionPipeline:
    from diffusers.pipelines.deprecated.unclip.text_proj import UnCLIPTextProjModel

    resolution = {
        "sample_size": 32,
        "layers_per_block": 1,
        "block_out_channels": (8, 16),
        "down_block_types": ("ResnetDownsampleBlock2D",) * 2,
        "up_block_types": ("ResnetUpsampleBlock2D",) * 2,
        "in_channels": 6,
        "out_channels": 3,
        "norm_num_groups": 4,
        "add_attention": False,
    }
    return diffusers.UnCLIPPipeline(
        prior=_prior(),
        text_encoder=clip_encoder(projected=True),
        tokenizer=clip_tokenizer(),
        text_proj=UnCLIPTextProjModel(
            clip_embeddings_dim=WIDTH, time_embed_dim=32, cross_attention_dim=WIDTH
        ),
        decoder=diffusers.UNet2DConditionModel(
            **(
                _UNET
                | {
                    "in_channels": 3,
                    "out_channels": 6,
                    "down_block_types": ("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
                    "up_block_types": ("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
                    "mid_block_type": "UNetMidBlock2DSimpleCrossAttn",
                    "class_embed_type": "identity",
                }
            )
        ),
        super_res_first=diffusers.UNet2DModel(**resolution),
        super_res_last=diffusers.UNet2DModel(**resolution),
        prior_scheduler=diffusers.UnCLIPScheduler(prediction_type="sample"),
        decoder_scheduler=diffusers.UnCLIPScheduler(variance_type="learned_range"),
        super_res_scheduler=diffusers.UnCLIPScheduler(),
    )


def _gemma_3(vocabulary: int) -> Any:
    text = {
        "vocab_size": vocabulary,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = transformers.Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    return transformers.Gemma3ForConditionalGeneration(config)


def _connectors() -> Any:
    from diffusers.pipelines.ltx2 import LTX2TextConnectors

    return LTX2TextConnectors(
        caption_channels=16,
        text_proj_in_factor=LAYERS + 1,
        video_connector_num_attention_heads=2,
        video_connector_attention_head_dim=8,
        video_connector_num_layers=1,
        video_connector_num_learnable_registers=None,
        audio_connector_num_attention_heads=2,
        audio_connector_attention_head_dim=8,
        audio_connector_num_layers=1,
        audio_connector_num_learnable_registers=None,
        connector_rope_base_seq_len=32,
        rope_double_precision=False,
    )


def _ltx_2_transformer() -> Any:
    return diffusers.LTX2VideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        audio_in_channels=4,
        audio_out_channels=4,
        audio_num_attention_heads=2,
        audio_attention_head_dim=4,
        audio_cross_attention_dim=8,
        num_layers=LAYERS,
        caption_channels=16,
        rope_double_precision=False,
    )


def ltx_2() -> DiffusionPipeline:
    """Video with the sound that belongs to it."""
    from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder

    tokenizer = qwen_tokenizer()
    return diffusers.LTX2Pipeline(
        tokenizer=tokenizer,
        text_encoder=_gemma_3(len(tokenizer)),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        connectors=_connectors(),
        vae=diffusers.AutoencoderKLLTX2Video(
            latent_channels=4,
            block_out_channels=(8,),
            decoder_block_out_channels=(8,),
            layers_per_block=(1,),
            decoder_layers_per_block=(1, 1),
            spatio_temporal_scaling=(True,),
            decoder_spatio_temporal_scaling=(True,),
            decoder_inject_noise=(False, False),
            downsample_type=("spatial",),
            upsample_type=("spatiotemporal",),
            upsample_residual=(False,),
            upsample_factor=(1,),
            patch_size=1,
        ),
        audio_vae=diffusers.AutoencoderKLLTX2Audio(
            base_channels=4,
            ch_mult=(1,),
            num_res_blocks=1,
            resolution=32,
            latent_channels=2,
            mel_bins=8,
        ),
        vocoder=LTX2Vocoder(
            in_channels=16,
            hidden_channels=32,
            upsample_kernel_sizes=[4, 4],
            upsample_factors=[2, 2],
            resnet_kernel_sizes=[3],
            resnet_dilations=[[1, 3, 5]],
        ),
        transformer=_ltx_2_transformer(),
    )


def ace_step() -> DiffusionPipeline:
    """Sound of 0.1 s and more, whose text is a tag and lyrics."""
    from diffusers.pipelines.ace_step import AceStepConditionEncoder

    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "sliding_window": 16,
    }
    tokenizer = qwen_tokenizer()
    return diffusers.AceStepPipeline(
        tokenizer=tokenizer,
        text_encoder=transformers.Qwen3Model(
            transformers.Qwen3Config(
                vocab_size=len(tokenizer),
                hidden_size=WIDTH,
                intermediate_size=64,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=1,
                head_dim=16,
                pad_token_id=0,
            )
        ),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=1.0),
        vae=diffusers.AutoencoderOobleck(
            encoder_hidden_size=4,
            downsampling_ratios=[2, 4, 8],
            channel_multiples=[1, 2, 4],
            decoder_channels=4,
            decoder_input_channels=4,
            audio_channels=2,
            sampling_rate=1600,
        ),
        transformer=diffusers.AceStepTransformer1DModel(
            **sizes, num_hidden_layers=LAYERS, in_channels=12, audio_acoustic_hidden_dim=4
        ),
        condition_encoder=AceStepConditionEncoder(
            **sizes,
            text_hidden_dim=WIDTH,
            timbre_hidden_dim=4,
            num_lyric_encoder_hidden_layers=1,
            num_timbre_encoder_hidden_layers=1,
        ),
    )
