"""What can come of a request to the API server, over real HTTP on this machine."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from aiohttp import web
from kubernetes.aio.client.configuration import Configuration

from stage_operator.client.kube import PODS, STAGES, Conflict, Kube, KubeError, Missing, Refused, Trouble
from stage_operator.client.rate import Bucket
from stage_operator.telemetry.metrics import Metrics

T = TypeVar("T")
BODY = web.RequestKey("body", bytes)
Answer = Callable[[web.Request], web.Response]


class Meter:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, int]] = []
        self.waited_s = 0.0

    def request(self, verb: str, resource: str, code: int, seconds: float) -> None:
        self.requests.append((verb, resource, code))

    def throttled(self, seconds: float) -> None:
        self.waited_s += seconds


def talk(answers: list[Answer], work: Callable[[Kube], Awaitable[T]]) -> tuple[T, list[web.Request], Meter]:
    """Run `work` with a client of a server that gives these answers in turn."""
    asked: list[web.Request] = []
    meter = Meter()

    async def handle(request: web.Request) -> web.Response:
        request[BODY] = await request.read()
        asked.append(request)
        return answers[len(asked) - 1](request)

    async def main() -> T:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        kube = client(runner.addresses[0][1], meter)
        try:
            return await work(kube)
        finally:
            await kube.close()
            await runner.cleanup()

    return asyncio.run(main()), asked, meter


def client(port: int, meter: Any) -> Kube:
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{port}"
    return Kube(configuration, meter, Bucket(500, 1000, time.monotonic()))


def ok(value: object) -> Answer:
    return lambda request: web.json_response(value)


def fault(code: int, reason: str = "", **headers: str) -> Answer:
    body = {"kind": "Status", "code": code, "reason": reason, "message": f"said {code}"}
    return lambda request: web.json_response(body, status=code, headers=headers)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (400, Refused),
        (401, Trouble),
        (403, Refused),
        (404, Missing),
        (409, Conflict),
        (410, Missing),
        (422, Refused),
        (500, Trouble),
        (503, Trouble),
        (504, Trouble),
    ],
)
def test_an_error_is_one_of_four_and_carries_what_the_server_said(code: int, error: type[KubeError]) -> None:
    async def work(kube: Kube) -> KubeError:
        with pytest.raises(error) as caught:
            await kube.get(PODS, "ns", "p")
        return caught.value

    found, _, meter = talk([fault(code, "Because")], work)
    assert (found.code, found.reason) == (code, "Because")
    assert f"said {code}" in found.message
    assert meter.requests == [("get", "pods", code)]


def test_an_answer_of_something_else_in_the_servers_stead_is_trouble() -> None:
    async def work(kube: Kube) -> None:
        with pytest.raises(Trouble):
            await kube.get(PODS, "ns", "p")

    talk([lambda request: web.Response(status=502, text="<html>bad gateway</html>")], work)


def test_no_answer_at_all_is_trouble_and_counted_with_code_0() -> None:
    meter = Meter()
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]

    async def main() -> None:
        kube = client(port, meter)
        with pytest.raises(Trouble, match=r"get /api/v1/namespaces/ns/pods/p"):
            await kube.get(PODS, "ns", "p")
        await kube.close()

    asyncio.run(main())
    assert meter.requests == [("get", "pods", 0)]


def test_a_busy_server_is_asked_again_after_the_time_that_it_names() -> None:
    async def work(kube: Kube) -> float:
        began = time.monotonic()
        await kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ns", "name": "p"}})
        return time.monotonic() - began

    took_s, asked, meter = talk([fault(429, **{"Retry-After": "0.3"}), ok({"kind": "Pod"})], work)
    assert len(asked) == 2
    assert took_s >= 0.3
    assert meter.waited_s == pytest.approx(0.3, abs=0.05)


def test_a_server_that_stays_busy_is_trouble() -> None:
    async def work(kube: Kube) -> None:
        with pytest.raises(Trouble):
            await kube.get(PODS, "ns", "p")

    _, asked, _ = talk([fault(429, **{"Retry-After": "0.1"})] * 9, work)
    assert len(asked) == 4


def test_a_list_is_read_page_by_page_at_one_version() -> None:
    def page(*names: str, token: str = "") -> dict[str, object]:
        metadata = {"resourceVersion": "42", "continue": token}
        return {"metadata": metadata, "items": [{"metadata": {"name": name}, "spec": {}} for name in names]}

    listing, asked, _ = talk(
        [ok(page("a", "b", token="next")), ok(page("c"))],
        lambda kube: kube.list(
            PODS, None, selector="x", slim=lambda item: {"kind": item["kind"], **item["metadata"]}
        ),
    )
    assert listing.version == 42
    assert listing.items == tuple({"kind": "Pod", "name": name} for name in "abc")
    assert [request.query.get("continue") for request in asked] == [None, "next"]
    assert all(request.query["labelSelector"] == "x" for request in asked)


def stream(*events: tuple[str, dict[str, object]]) -> Answer:
    lines = [json.dumps({"type": type_, "object": obj}) + "\n" for type_, obj in events]
    return lambda request: web.Response(text="".join(lines), content_type="application/json")


async def heard(kube: Kube) -> list[tuple[str, Any]]:
    told = kube.watch(PODS, "ns", selector="x", version=7, lasts_s=60)
    return [(type_, obj["metadata"]["name"]) async for type_, obj in told]


def test_a_watch_tells_what_happens_after_a_version_until_the_server_ends_it() -> None:
    long = {"metadata": {"name": "b", "annotations": {"long": "x" * 3_000_000}}}
    answer = stream(("ADDED", {"metadata": {"name": "a"}}), ("DELETED", long))
    events, (request,), meter = talk([answer], heard)
    assert events == [("ADDED", "a"), ("DELETED", "b")]
    asked = {name: request.query[name] for name in ("watch", "resourceVersion", "timeoutSeconds")}
    assert asked == {"watch": "true", "resourceVersion": "7", "timeoutSeconds": "60"}
    assert request.query["labelSelector"] == "x"
    assert meter.requests == [("watch", "pods", 200)]


@pytest.mark.parametrize(
    "answer",
    [
        fault(410, "Expired"),
        stream(("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})),
    ],
)
def test_a_watch_from_a_version_that_is_forgotten_finds_it_missing(answer: Answer) -> None:
    async def work(kube: Kube) -> None:
        with pytest.raises(Missing):
            await heard(kube)

    talk([answer], work)


def test_a_watch_that_breaks_in_the_midst_of_a_line_is_trouble() -> None:
    async def work(kube: Kube) -> None:
        with pytest.raises(Trouble, match="watch /api/v1/namespaces/ns/pods"):
            await heard(kube)

    talk([lambda request: web.Response(text='{"type": "ADD\n')], work)


def test_a_status_is_merged_through_its_own_door_under_our_name() -> None:
    patch = {"metadata": {"resourceVersion": "7"}, "status": {"phase": "Ready"}}
    _, (request,), _ = talk(
        [ok({"kind": "DiffusionStage"})],
        lambda kube: kube.merge(STAGES, "ns", "s", patch, subresource="status"),
    )
    assert request.method == "PATCH"
    assert request.path.endswith("/namespaces/ns/diffusionstages/s/status")
    assert request.headers["Content-Type"] == "application/merge-patch+json"
    assert request.query["fieldManager"] == "omnistage-operator"


def test_an_apply_takes_its_fields_by_force() -> None:
    manifest = {"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "ns", "name": "s"}}
    _, (request,), _ = talk([ok(manifest)], lambda kube: kube.apply(manifest))
    assert request.headers["Content-Type"] == "application/apply-patch+yaml"
    assert (request.query["force"], request.query["fieldManager"]) == ("true", "omnistage-operator")


@pytest.mark.parametrize("verb", ["create", "apply"])
def test_what_is_made_is_judged_strictly_so_that_no_field_is_dropped_in_silence(verb: str) -> None:
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ns", "name": "p"}}

    async def work(kube: Kube) -> None:
        with pytest.raises(Refused, match="unknown field"):
            await getattr(kube, verb)(manifest)

    body = {"code": 400, "reason": "BadRequest", "message": 'strict decoding error: unknown field "spec.x"'}
    _, (request,), _ = talk([lambda _: web.json_response(body, status=400)], work)
    assert request.query["fieldValidation"] == "Strict"


def test_a_deletion_is_of_one_uid_and_with_its_grace() -> None:
    bodies: list[Any] = []

    def answer(request: web.Request) -> web.Response:
        bodies.append(json.loads(request[BODY]))
        return web.json_response({"kind": "Status"})

    talk([answer], lambda kube: kube.delete(PODS, "ns", "p", uid="u", grace_s=0))
    assert bodies[0]["preconditions"] == {"uid": "u"}
    assert bodies[0]["gracePeriodSeconds"] == 0


def test_real_metrics_take_what_a_client_tells() -> None:
    metrics = Metrics("test")
    metrics.request("get", "pods", 200, 0.01)
    assert (
        b'omnistage_operator_api_requests_total{code="200",resource="pods",verb="get"} 1.0' in metrics.text()
    )
