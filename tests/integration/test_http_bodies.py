"""Bodies that hold what JSON allows and nobody can use."""

from __future__ import annotations

import httpx
import pytest

from support.http_stage import IMAGES_URL


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff\xfe\xfd", "UTF-8"),
        (b'{"prompt": "\xff"}', "UTF-8"),
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "nested"),
        (b'{"prompt": "a", "seed": ' + b"9" * 10_000 + b"}", "digits"),
    ],
)
def test_a_body_that_cant_be_read_is_told_why(client: httpx.Client, content: bytes, why: str) -> None:
    answer = client.post(IMAGES_URL, content=content, headers={"content-type": "application/json"})
    assert why in str(answer.json()["error"]["message"])


@pytest.mark.parametrize(
    "content",
    [
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "model": "\\udfff"}',
        b'{"prompt": "a", "\\ud800": 1}',
        b'{"prompt": "a", "\\ud800": 1, "\\ud800": 2}',
        b'{"prompt": "a", "metadata": {"x\\udc00": 1, "x\\udc00": 2}}',
        b'{"prompt": "a", "negative_prompt": "\\ud83d", "user": "\\ud83d"}',
    ],
)
def test_half_a_surrogate_pair_is_a_fault_wherever_it_stands(client: httpx.Client, content: bytes) -> None:
    answer = client.post(IMAGES_URL, content=content, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["type"] == "invalid_request_error"
