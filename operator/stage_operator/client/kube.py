"""The API server: every request that the operator makes for itself, and what can come of one.

Objects go in and come out as plain mappings. A request waits for its turn, and as long as the server asks; what goes
wrong is one of four errors, so that callers choose by type and never by a code.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import aiohttp
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.exceptions import ApiException

from stage_api import names
from stage_operator.client.connection import PlainClient
from stage_operator.client.rate import Bucket
from stage_operator.values import FIELD_MANAGER, Manifest

T = TypeVar("T")

REQUEST_S: Final = 15.0
LIST_S: Final = 60.0
CONNECT_S: Final = 5.0
PAGE: Final = 500
_TRIES_WHEN_BUSY: Final = 4
_LONGEST_ASKED_S: Final = 30.0
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"


class KubeError(Exception):
    """A request that didn't do what it was for."""

    def __init__(self, message: str, *, code: int = 0, reason: str = "", said: str = "") -> None:
        super().__init__(message)
        self.message: Final = message
        self.said: Final = said or message  # in the server's own words, for people who didn't send it
        self.code: Final = code  # of HTTP; 0 where there was no answer
        self.reason: Final = reason  # the server's word for it, such as AlreadyExists


class Missing(KubeError):
    """There is no such object, or no such kind."""


class Conflict(KubeError):
    """It is there already, or has changed since it was read."""


class Refused(KubeError):
    """The server doesn't want this request, and wouldn't if it came again."""


class Trouble(KubeError):
    """No answer, or one that says nothing about the request. Whether it was carried out isn't known."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind, as URLs name it."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL's path; no namespace is all of them."""
        root = f"/api/{self.api_version}" if "/" not in self.api_version else f"/apis/{self.api_version}"
        parts = [root]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part is not None]
        return "/".join(parts)


STAGES: Final = Resource(names.API_VERSION, names.KIND, names.PLURAL)
PODS: Final = Resource("v1", "Pod", "pods")
NODES: Final = Resource("v1", "Node", "nodes", namespaced=False)
SECRETS: Final = Resource("v1", "Secret", "secrets")
LEASES: Final = Resource("coordination.k8s.io/v1", "Lease", "leases")
EVENTS: Final = Resource("events.k8s.io/v1", "Event", "events")

_PLURALS: Final = {
    **{each.kind: each.plural for each in (STAGES, PODS, NODES, SECRETS, LEASES, EVENTS)},
    "ConfigMap": "configmaps",
    "NetworkPolicy": "networkpolicies",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "PodGroup": "podgroups",
    "PodMonitor": "podmonitors",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
}


def resource_of(api_version: str, kind: str) -> Resource:
    """The resource of a manifest. KeyError for a kind that the operator has no business with."""
    return Resource(api_version, kind, _PLURALS[kind], namespaced=kind != NODES.kind)


class Meter(Protocol):
    """Who is told of requests."""

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        """One was answered, or not (code 0), after so long."""

    def throttled(self, seconds: float) -> None:
        """One had to wait for its turn."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All that there was at one version."""

    items: tuple[Manifest, ...]
    version: int


@dataclass(frozen=True, slots=True)
class _Call:
    verb: str
    method: str
    path: str
    resource: str
    query: tuple[tuple[str, str], ...] = ()
    body: Mapping[str, Any] | None = None
    content_type: str = "application/json"
    timeout_s: float = REQUEST_S
    in_turn: bool = True
    streams: bool = False  # the answer is read as it comes


class Kube:
    """A client for one event loop."""

    def __init__(
        self,
        configuration: Configuration,
        meter: Meter,
        bucket: Bucket,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.configuration: Final = configuration
        self._client = PlainClient(configuration)
        self._client.user_agent = FIELD_MANAGER
        self._meter = meter
        self._bucket = bucket
        self._clock = clock

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Manifest:
        """One object."""
        return await self._ask(_Call("get", "get", resource.path(namespace, name), resource.plural))

    async def list(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        selector: str | None = None,
        slim: Callable[[Manifest], Manifest] = lambda item: item,
    ) -> Listing:
        """All objects, page by page; each is slimmed as it comes, since whole ones may be large."""
        items: list[Manifest] = []
        token = None
        while True:
            query = [("limit", str(PAGE))]
            query += [] if selector is None else [("labelSelector", selector)]
            query += [] if token is None else [("continue", token)]
            path = resource.path(namespace)
            page = await self._ask(
                _Call("list", "get", path, resource.plural, query=tuple(query), timeout_s=LIST_S)
            )
            # Items of a list don't say what they are.
            kind = {"apiVersion": resource.api_version, "kind": resource.kind}
            items.extend(slim({**kind, **item}) for item in page["items"])
            token = page["metadata"].get("continue")
            if not token:
                return Listing(tuple(items), int(page["metadata"]["resourceVersion"]))

    async def watch(
        self, resource: Resource, namespace: str | None, *, selector: str, version: int, lasts_s: int
    ) -> AsyncIterator[tuple[str, Manifest]]:
        """What happens after that version, as types and objects, until the server ends it after `lasts_s` seconds.

        A BOOKMARK is an object that holds nothing but a later version. Missing if what happened since is forgotten.
        """
        query = [("watch", "true"), ("allowWatchBookmarks", "true"), ("labelSelector", selector)]
        query += [("resourceVersion", str(version)), ("timeoutSeconds", str(lasts_s))]
        timeout_s = lasts_s + REQUEST_S
        path = resource.path(namespace)
        call = _Call(
            "watch", "get", path, resource.plural, query=tuple(query), timeout_s=timeout_s, streams=True
        )
        async with await self._in_turn(call, self._open) as response:
            with _told(call):
                async for line in _lines(response):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise _fault(call, int(status.get("code") or 0), status)
                    yield event["type"], event["object"]

    async def create(self, manifest: Manifest, *, in_turn: bool = True, dry_run: bool = False) -> Manifest:
        """Make an object, or tell what would be made. Conflict if the name is taken, Refused if a field is unknown."""
        resource, namespace, _ = _where(manifest)
        path = resource.path(namespace)
        query = (*_STRICTLY, ("dryRun", "All")) if dry_run else _STRICTLY
        return await self._ask(
            _Call("create", "post", path, resource.plural, query, manifest, in_turn=in_turn)
        )

    async def replace(self, manifest: Manifest, *, in_turn: bool = True) -> Manifest:
        """Store an object as it is. Conflict if it has changed since the version that the manifest names."""
        resource, namespace, name = _where(manifest)
        path = resource.path(namespace, name)
        return await self._ask(
            _Call("update", "put", path, resource.plural, _AS_US, manifest, in_turn=in_turn)
        )

    async def apply(self, manifest: Manifest) -> Manifest:
        """Server-side apply, taking the fields from whoever had them."""
        resource, namespace, name = _where(manifest)
        query = (*_STRICTLY, ("force", "true"))
        path = resource.path(namespace, name)
        return await self._ask(_Call("apply", "patch", path, resource.plural, query, manifest, _APPLY))

    async def merge(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Manifest,
        *,
        subresource: str | None = None,
    ) -> Manifest:
        """Change what the patch names. Conflict if it names a version that isn't the present one."""
        path = resource.path(namespace, name, subresource)
        return await self._ask(_Call("patch", "patch", path, resource.plural, _AS_US, patch, _MERGE))

    async def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        grace_s: int | None = None,
    ) -> Manifest:
        """Delete an object, which may take its grace to go. Missing, or Conflict if another has its name now.

        The answer is the object, or a Status where it is gone already.
        """
        body: Manifest = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
        }
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        path = resource.path(namespace, name)
        return await self._ask(_Call("delete", "delete", path, resource.plural, body=body))

    async def fetch(self, path: str, *, timeout_s: float = REQUEST_S, about: str = "discovery") -> Manifest:
        """One answer as it is, such as what the API server says of itself. `about`: what it is counted as."""
        return await self._ask(_Call("get", "get", path, about, timeout_s=timeout_s))

    async def _ask(self, call: _Call) -> Manifest:
        return await self._in_turn(call, self._answer)

    async def _in_turn(self, call: _Call, send: Callable[[_Call], Awaitable[T]]) -> T:
        for _ in range(_TRIES_WHEN_BUSY):
            if call.in_turn and (wait_s := self._bucket.take(self._clock())) > 0:
                self._meter.throttled(wait_s)
                await asyncio.sleep(wait_s)
            try:
                return await send(call)
            except ApiException as error:
                fault = _fault(call, int(error.status or 0), _status(error), str(error.reason or ""))
                if error.status != 429:
                    raise fault from None
                self._bucket.close(self._clock() + _asked_s(error))
                if not call.in_turn:
                    break
        raise fault

    async def _answer(self, call: _Call) -> Manifest:
        async with await self._open(call) as response:
            with _told(call):
                answer: Manifest = json.loads(await response.read())
                return answer

    async def _open(self, call: _Call) -> aiohttp.ClientResponse:
        began = self._clock()
        code = 0
        try:
            with _told(call):
                response = await self._request(call)
                code = response.status
                if not call.streams:
                    await response.read()
        except ApiException as error:
            code = error.status or 0
            raise
        finally:
            self._meter.request(call.verb, call.resource, code, self._clock() - began)
        return response

    async def _request(self, call: _Call) -> aiohttp.ClientResponse:
        """As the library's dynamic client does it, which writes a whole traceback into every refusal."""
        request = await self._client.param_serialize(
            call.method.upper(),
            call.path,
            query_params=list(call.query),
            header_params={"Accept": "application/json", "Content-Type": call.content_type},
            body=call.body,
            auth_settings=["BearerToken"],
        )
        timeout = aiohttp.ClientTimeout(total=call.timeout_s, sock_connect=CONNECT_S)
        answer = await self._client.call_api(*request, _request_timeout=timeout)
        if not 200 <= answer.status <= 299:
            await answer.read()
            raise ApiException(http_resp=answer)
        response: aiohttp.ClientResponse = answer.response
        return response


@contextmanager
def _told(call: _Call) -> Iterator[None]:
    """Say of a connection that broke, or an answer that is none, what it was about."""
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        what = str(error) or type(error).__name__
        raise Trouble(f"{call.verb} {call.path}: {what}", reason=type(error).__name__) from error


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Line by line, however long they are."""
    rest = b""
    async for part in response.content.iter_any():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line


_AS_US: Final = (("fieldManager", FIELD_MANAGER),)
_STRICTLY: Final = (*_AS_US, ("fieldValidation", "Strict"))
"""A field that the server doesn't know would else be dropped without a word: a typing error in a pod template."""


def _where(manifest: Manifest) -> tuple[Resource, str | None, str]:
    metadata = manifest["metadata"]
    resource = resource_of(manifest["apiVersion"], manifest["kind"])
    return resource, metadata.get("namespace"), metadata["name"]


def _fault(call: _Call, code: int, status: Mapping[str, Any], otherwise: str = "") -> KubeError:
    reason = str(status.get("reason") or "")
    said = str(status.get("message") or otherwise or code)
    text = f"{call.verb} {call.path}: {said}"
    if code in (404, 410):
        return Missing(text, code=code, reason=reason)
    if code == 409:
        return Conflict(text, code=code, reason=reason)
    # 401 is a token that has just run out: the next request brings a fresh one.
    if code in (400, 403, 405, 413, 415, 422):
        return Refused(text, code=code, reason=reason, said=said)
    return Trouble(text, code=code, reason=reason)


def _status(error: ApiException) -> Mapping[str, Any]:
    """The Status object in an answer; nothing where a proxy answered in the server's stead."""
    try:
        parsed = json.loads(error.body or b"")
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _asked_s(error: ApiException) -> float:
    """How long a busy server asks to be left alone."""
    try:
        asked = float((error.headers or {}).get("Retry-After", ""))
    except ValueError:
        asked = 1.0
    return min(max(asked, 0.1), _LONGEST_ASKED_S)
