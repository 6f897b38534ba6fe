"""What a loaded pipeline can do: declared by its record, verified by the probe and the self-check at load."""

from __future__ import annotations

from msgspec import Struct

from stage_runtime.core.outcome import Modality


class ComponentCapability(Struct, frozen=True, kw_only=True):
    """How the calls of one component may be merged across requests."""

    name: str
    """Component and method, e.g. `transformer.forward`, `vae.decode`."""
    merges: bool
    reason: str = ""
    """Why it runs solo; empty when it merges."""
    ragged: bool = False
    """True when calls of unequal text length are padded and masked into one."""


class Capability(Struct, frozen=True, kw_only=True):
    """The truth about a loaded model, printed at start and in /v1/models."""

    pipeline: str
    modality: Modality
    components: tuple[ComponentCapability, ...]
    denoisers: tuple[str, ...]
    early_stop: bool
    resumable: bool
    """Preemption and resuming work: no component keeps state between calls."""
    reason: str = ""
    """Why it is not resumable; empty when it is."""
    steps: bool = True
    """It is made in denoise steps, between which others may join; False: in one go, whatever number is asked for."""
    previews: bool = True
    """A picture can be shown after any step."""
    previews_reason: str = ""
    """Why none can; empty when they can."""

    @property
    def batches(self) -> bool:
        """True when at least one denoiser merges calls of several requests."""
        return any(c.merges for c in self.components if c.name.rsplit(".", 1)[0] in self.denoisers)
