"""How to reach the API server: read from a file, or from what a pod finds."""

from __future__ import annotations

import os
from typing import Any, Final

from kubernetes.aio import config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from stage_api.errors import Fault, SpecError

SERVICE_HOST: Final = "KUBERNETES_SERVICE_HOST"  # set in every pod


async def configure(kubeconfig: str | None, streams: int) -> Configuration:
    """How to reach the API server: by that file, else as a pod does, else by KUBECONFIG or ~/.kube/config.

    `streams` is how many connections are taken up for good, so that the others still have theirs.

    SpecError if none of them tells.
    """
    configuration = Configuration()
    configuration.connection_pool_maxsize += streams
    # Looking for proxies in the environment for each request is dear; one in the kubeconfig is heeded all the same.
    configuration.client_session_kwargs = {"trust_env": False}
    try:
        if kubeconfig is None and SERVICE_HOST in os.environ:
            config.load_incluster_config(client_configuration=configuration)
        else:
            await config.load_kube_config(kubeconfig, client_configuration=configuration)
    except (config.ConfigException, OSError, ValueError) as error:
        expected = "a file that tells how to reach an API server, or to run in a pod"
        raise SpecError([Fault("--kubeconfig", expected, str(error))]) from error
    return configuration


class PlainClient(ApiClient):  # type: ignore[misc]
    """Its bodies are plain JSON already; walking each of them costs more than all else about a request."""

    def sanitize_for_serialization(self, obj: Any) -> Any:
        """The same object."""
        return obj
