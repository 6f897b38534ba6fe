"""Which ServiceAccount this program runs as, as the token that a pod is given says it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Final

from stage_operator.values import Manifest

TOKEN_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_CLAIMS: Final = "kubernetes.io"


def own_account(namespace: str, file: Path = TOKEN_FILE) -> Manifest | None:
    """An owner reference to the account, for an object in that namespace; None where there is none to refer to.

    An account owns what is in its own namespace only: elsewhere the cluster would take it for gone, and the object
    with it. The token is this program's own, so nothing depends on its signature.
    """
    try:
        payload = file.read_text(encoding="ascii").split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))[_CLAIMS]
        account, where = claims["serviceaccount"], claims["namespace"]
        owner = {"apiVersion": "v1", "kind": "ServiceAccount", "name": account["name"], "uid": account["uid"]}
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return owner if where == namespace else None
