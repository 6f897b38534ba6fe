"""One function a pipeline class: the smallest configuration at which prompt, seed and step count all show.

Common: width 32 (2 heads × 16), 2 blocks, an image VAE that halves each side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from diffusers import (
    AutoencoderKL,
    AutoencoderKLQwenImage,
    AutoencoderKLWan,
    AutoencoderOobleck,
    DiffusionPipeline,
    DPMSolverMultistepScheduler,
    EDMDPMSolverMultistepScheduler,
    EulerDiscreteScheduler,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    PixArtSigmaPipeline,
    PixArtTransformer2DModel,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    SD3Transformer2DModel,
    StableAudioDiTModel,
    StableAudioPipeline,
    StableAudioProjectionModel,
    StableDiffusion3Pipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
    ZImagePipeline,
    ZImageTransformer2DModel,
)

from support.tiny_text import (
    WIDTH,
    clip_encoder,
    clip_tokenizer,
    qwen3_encoder,
    qwen_tokenizer,
    qwen_vl_encoder,
    t5_encoder,
    t5_tokenizer,
    umt5_encoder,
)

HEADS: Final = 2
HEAD_SIZE: Final = 16
LAYERS: Final = 2


def image_vae(latent_channels: int = 4, **overrides: Any) -> AutoencoderKL:
    settings: dict[str, Any] = {
        "in_channels": 3,
        "out_channels": 3,
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "block_out_channels": (8, 8),
        "layers_per_block": 1,
        "latent_channels": latent_channels,
        "norm_num_groups": 4,
        "sample_size": 32,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
        "scaling_factor": 1.5,
        "shift_factor": 0.06,
    }
    return AutoencoderKL(**(settings | overrides))


def stable_diffusion_3() -> DiffusionPipeline:
    """Without its third text encoder, as often deployed: model_index.json holds [null, null] for it."""
    transformer = SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=LAYERS,
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_SIZE,
        joint_attention_dim=2 * WIDTH,
        caption_projection_dim=HEADS * HEAD_SIZE,
        pooled_projection_dim=2 * WIDTH,
        pos_embed_max_size=16,
        qk_norm="rms_norm",
    )
    return StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=image_vae(),
        text_encoder=clip_encoder(projected=True),
        tokenizer=clip_tokenizer(),
        text_encoder_2=clip_encoder(projected=True),
        tokenizer_2=clip_tokenizer(),
        text_encoder_3=None,
        tokenizer_3=None,
    )


def flux() -> DiffusionPipeline:
    """The guidance-distilled kind: guidance_scale goes into the model, true_cfg_scale runs a second pass."""
    transformer = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_SIZE,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        guidance_embeds=True,
        axes_dims_rope=(4, 6, 6),
    )
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=image_vae(),
        text_encoder=clip_encoder(projected=False),
        tokenizer=clip_tokenizer(),
        text_encoder_2=t5_encoder(),
        tokenizer_2=t5_tokenizer(),
        transformer=transformer,
    )


def qwen_image() -> DiffusionPipeline:
    tokenizer = qwen_tokenizer()
    transformer = QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=LAYERS,
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_SIZE,
        joint_attention_dim=WIDTH,
        axes_dims_rope=(4, 6, 6),
    )
    vae = AutoencoderKLQwenImage(
        base_dim=4,
        z_dim=4,
        dim_mult=[1, 2],
        num_res_blocks=1,
        temperal_downsample=[False],
        latents_mean=[0.1, -0.1, 0.05, -0.05],
        latents_std=[1.0, 0.9, 1.1, 1.0],
    )
    return QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
        vae=vae,
        text_encoder=qwen_vl_encoder(len(tokenizer)),
        tokenizer=tokenizer,
        transformer=transformer,
    )


def wan() -> DiffusionPipeline:
    transformer = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_SIZE,
        in_channels=4,
        out_channels=4,
        text_dim=WIDTH,
        freq_dim=32,
        ffn_dim=2 * WIDTH,
        num_layers=LAYERS,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        rope_max_seq_len=32,
    )
    vae = AutoencoderKLWan(
        base_dim=4,
        z_dim=4,
        dim_mult=[1, 2],
        num_res_blocks=1,
        temperal_downsample=[True],
        latents_mean=[0.1, -0.1, 0.05, -0.05],
        latents_std=[1.0, 0.9, 1.1, 1.0],
        scale_factor_temporal=2,
        scale_factor_spatial=2,
    )
    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
    )
    return WanPipeline(
        tokenizer=t5_tokenizer(),
        text_encoder=umt5_encoder(),
        transformer=transformer,
        vae=vae,
        scheduler=scheduler,
    )


def z_image() -> DiffusionPipeline:
    tokenizer = qwen_tokenizer()
    transformer = ZImageTransformer2DModel(
        all_patch_size=(2,),
        all_f_patch_size=(1,),
        in_channels=4,
        dim=HEADS * HEAD_SIZE,
        n_layers=LAYERS,
        n_refiner_layers=1,
        n_heads=HEADS,
        n_kv_heads=HEADS,
        cap_feat_dim=WIDTH,
        axes_dims=[4, 6, 6],
        axes_lens=[1024, 64, 64],
    )
    return ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=image_vae(),
        text_encoder=qwen3_encoder(len(tokenizer)),
        tokenizer=tokenizer,
        transformer=transformer,
    )


def pixart_sigma() -> DiffusionPipeline:
    transformer = PixArtTransformer2DModel(
        num_attention_heads=HEADS,
        attention_head_dim=HEAD_SIZE,
        in_channels=4,
        out_channels=8,
        num_layers=LAYERS,
        cross_attention_dim=HEADS * HEAD_SIZE,
        sample_size=16,
        patch_size=2,
        caption_channels=WIDTH,
        interpolation_scale=1,
    )
    return PixArtSigmaPipeline(
        tokenizer=t5_tokenizer(),
        text_encoder=t5_encoder(),
        vae=image_vae(),
        transformer=transformer,
        scheduler=DPMSolverMultistepScheduler(),
    )


def stable_diffusion_xl() -> DiffusionPipeline:
    unet = UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(1, 2),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 1),
        projection_class_embeddings_input_dim=6 * 8 + WIDTH,
        cross_attention_dim=2 * WIDTH,
        norm_num_groups=4,
    )
    scheduler = EulerDiscreteScheduler(
        beta_start=0.00085, beta_end=0.012, steps_offset=1, beta_schedule="scaled_linear"
    )
    return StableDiffusionXLPipeline(
        vae=image_vae(shift_factor=None, use_quant_conv=True, use_post_quant_conv=True),
        text_encoder=clip_encoder(projected=False),
        text_encoder_2=clip_encoder(projected=True),
        tokenizer=clip_tokenizer(),
        tokenizer_2=clip_tokenizer(),
        unet=unet,
        scheduler=scheduler,
        add_watermarker=False,
    )


def stable_audio() -> DiffusionPipeline:
    """Stereo at 8 kHz; at most sample_size × 64 = 2048 samples, a quarter of a second."""
    conditioning = WIDTH
    transformer = StableAudioDiTModel(
        sample_size=32,
        in_channels=4,
        out_channels=4,
        num_layers=LAYERS,
        attention_head_dim=HEAD_SIZE,
        num_attention_heads=HEADS,
        num_key_value_attention_heads=1,
        cross_attention_dim=WIDTH,
        time_proj_dim=16,
        global_states_input_dim=2 * conditioning,
        cross_attention_input_dim=conditioning,
    )
    vae = AutoencoderOobleck(
        encoder_hidden_size=4,
        downsampling_ratios=[2, 4, 8],
        channel_multiples=[1, 2, 4],
        decoder_channels=4,
        decoder_input_channels=4,
        audio_channels=2,
        sampling_rate=8000,
    )
    projection = StableAudioProjectionModel(
        text_encoder_dim=WIDTH, conditioning_dim=conditioning, min_value=0, max_value=8
    )
    scheduler = EDMDPMSolverMultistepScheduler(
        solver_order=2, prediction_type="v_prediction", sigma_data=1.0, sigma_schedule="exponential"
    )
    return StableAudioPipeline(
        vae=vae,
        text_encoder=t5_encoder(),
        projection_model=projection,
        tokenizer=t5_tokenizer(longest=64),
        transformer=transformer,
        scheduler=scheduler,
    )


BUILDERS: Final[dict[str, Callable[[], DiffusionPipeline]]] = {
    "flux": flux,
    "pixart-sigma": pixart_sigma,
    "qwen-image": qwen_image,
    "stable-audio": stable_audio,
    "stable-diffusion-3": stable_diffusion_3,
    "stable-diffusion-xl": stable_diffusion_xl,
    "wan": wan,
    "z-image": z_image,
}
