"""Whether a stage can be steered from outside its pods, and by whom."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from stage_api.base import Contract, Law
from stage_api.errors import Fault
from stage_api.source import SecretKeyRef


def _has_token(enabled: bool, token: SecretKeyRef | None) -> Fault | None:
    if not enabled or token is not None:
        return None
    return Fault("tokenSecretRef", "the Secret that holds the token, since control is enabled", "none")


class ControlSpec(Contract):
    """Calls that pause, put to sleep and profile the stage, by `omnistage control`."""

    enabled: bool = Field(
        default=False,
        description="Take such calls, on a listener that only its own pod and the API server's port-forward reach.",
    )
    token_secret_ref: SecretKeyRef | None = Field(
        default=None,
        description="Token that each call must bring, of 16 characters at least. It may be changed at any time. "
        "`omnistage run` doesn't need it: its listener is for its own user only.",
    )

    laws: ClassVar[tuple[Law, ...]] = (
        Law(
            ("enabled", "token_secret_ref"),
            "!self.enabled || has(self.tokenSecretRef)",
            "must be given where control is enabled",
            _has_token,
            "tokenSecretRef",
        ),
    )
