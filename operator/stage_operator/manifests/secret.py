"""The Secret by which the ranks of a replica that spans pods know each other.

It is made once and then never read: the nodes hand it to the pods.
"""

from __future__ import annotations

from stage_api import names
from stage_api.stage import DiffusionStage
from stage_operator.manifests.identity import child
from stage_operator.values import CreateOnce


def keys(stage: DiffusionStage) -> CreateOnce:
    """The keys of the stage, drawn when the Secret is made."""
    name = names.keys_secret(stage.metadata.name)
    return CreateOnce(child(stage, "Secret", name, type="Opaque", immutable=True), draw=new_keys)


def new_keys() -> dict[str, str]:
    """Two new CURVE key pairs in Z85, by the names of their files."""
    import zmq  # only where replicas span pods

    server_public, server_secret = zmq.curve_keypair()
    client_public, client_secret = zmq.curve_keypair()
    return {
        names.KEY_SERVER_SECRET: server_secret.decode(),
        names.KEY_SERVER_PUBLIC: server_public.decode(),
        names.KEY_CLIENT_SECRET: client_secret.decode(),
        names.KEY_CLIENT_PUBLIC: client_public.decode(),
    }
