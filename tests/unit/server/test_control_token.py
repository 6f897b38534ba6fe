"""Who may steer a stage."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from stage_runtime.server.control.bearer import Bearer

TOKEN = "0123456789abcdef-of-the-stage"


async def inside(scope: Scope, receive: Receive, send: Send) -> None:
    """What the token guards."""
    await PlainTextResponse("inside")(scope, receive, send)


def ask(file: Path, authorization: str | bytes | None) -> httpx.Response:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(Bearer(inside, file))
        async with httpx.AsyncClient(transport=transport, base_url="http://stage") as client:
            headers = {} if authorization is None else {b"authorization": authorization}
            return await client.get("/", headers=headers)

    return asyncio.run(run())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return file


@pytest.mark.parametrize("authorization", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Bearer   {TOKEN} "])
def test_whoever_brings_the_token_is_let_in(file: Path, authorization: str) -> None:
    assert ask(file, authorization).text == "inside"


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.upper()}",
        "Bearer é".encode("latin-1"),
        b"Bearer \xff\xfe",
    ],
)
def test_whoever_brings_anything_else_is_not(file: Path, authorization: str | bytes | None) -> None:
    answer = ask(file, authorization)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert TOKEN not in answer.text


def test_a_changed_token_counts_from_the_next_call_on(file: Path) -> None:
    file.write_text("another-token-of-the-stage")
    assert ask(file, f"Bearer {TOKEN}").status_code == 401
    assert ask(file, "Bearer another-token-of-the-stage").status_code == 200


@pytest.mark.parametrize("token", [None, b"", b"\n", b"short", b" " * 40])
def test_nobody_is_let_in_while_there_is_no_token_to_compare_with(file: Path, token: bytes | None) -> None:
    file.unlink()
    if token is not None:
        file.write_bytes(token)
    for authorization in (None, "Bearer ", "Bearer short", f"Bearer {TOKEN}"):
        assert ask(file, authorization).status_code == 503
