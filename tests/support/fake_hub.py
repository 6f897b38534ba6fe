"""A server that speaks the part of the Hugging Face Hub's HTTP API that a fetch uses.

Tests here run it in their own process. As a program, on nothing but Python, it serves a folder to other machines; its
argument is JSON: {repo, revision, token, folder, port}. It prints each request's path.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import unquote, urlsplit

TREE = re.compile(r"/api/models/(?P<repo>.+)/tree/(?P<revision>[0-9a-f]+)")
FILE = re.compile(r"/(?P<repo>.+)/resolve/(?P<revision>[0-9a-f]+)/(?P<path>.+)")


class FakeHub:
    """One repository at one commit. What it should do wrong is set while it runs."""

    def __init__(
        self,
        repo: str,
        revision: str,
        files: Mapping[str, bytes],
        token: str | None = None,
        *,
        address: tuple[str, int] = ("127.0.0.1", 0),
    ) -> None:
        self.repo, self.revision, self.files, self.token = repo, revision, dict(files), token
        self.asked: list[tuple[str, str]] = []
        """Method and path of each request."""
        self.served_bytes = 0
        self.refuse: list[int] = []
        """Statuses of the next answers."""
        self.cut_after: int | None = None
        """How much of a file is sent before the line is cut, once."""
        self._lock = Lock()
        self._server = ThreadingHTTPServer(address, type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="hub")

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def serve(self) -> None:
        """Answer in this thread, for ever."""
        self._server.serve_forever()

    def _next_refusal(self) -> int | None:
        with self._lock:
            return self.refuse.pop(0) if self.refuse else None

    def _cut(self) -> int | None:
        with self._lock:
            cut, self.cut_after = self.cut_after, None
        return cut

    def _tree(self) -> bytes:
        listed = [
            {"type": "file", "oid": hashlib.sha1(data).hexdigest(), "size": len(data), "path": path}
            for path, data in self.files.items()
        ]
        return json.dumps(listed).encode()


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[FakeHub]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append((self.command, path))
        if (status := self.hub._next_refusal()) is not None:
            return self._send(status, b"{}", {}, with_body)
        if self.hub.token is not None and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self._send(401, b"{}", {"X-Error-Code": "GatedRepo"}, with_body)
        if (asked := TREE.fullmatch(path)) and self._is_known(asked):
            return self._send(200, self.hub._tree(), {"Content-Type": "application/json"}, with_body)
        if (asked := FILE.fullmatch(path)) and self._is_known(asked) and asked["path"] in self.hub.files:
            return self._send_file(self.hub.files[asked["path"]], with_body)
        code = "RevisionNotFound" if self.hub.repo in path else "RepoNotFound"
        return self._send(404, b"{}", {"X-Error-Code": code}, with_body)

    def _is_known(self, asked: re.Match[str]) -> bool:
        return (asked["repo"], asked["revision"]) == (self.hub.repo, self.hub.revision)

    def _send_file(self, data: bytes, with_body: bool) -> None:
        headers = {
            "X-Repo-Commit": self.hub.revision,
            "ETag": f'"{hashlib.sha1(data).hexdigest()}"',
            "Accept-Ranges": "bytes",
        }
        start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if start is None:
            return self._send(200, data, headers, with_body)
        first = int(start[1])
        headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        return self._send(206, data[first:], headers, with_body)

    def _send(self, status: int, body: bytes, headers: Mapping[str, str], with_body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not with_body:
            return
        is_file = "X-Repo-Commit" in headers
        cut = self.hub._cut() if is_file else None
        sent = body if cut is None else body[:cut]
        self.wfile.write(sent)
        if is_file:
            self.hub.served_bytes += len(sent)
        if cut is not None:
            self.close_connection = True
            self.connection.close()


def main() -> None:
    order = json.loads(sys.argv[1])
    folder = Path(order["folder"])
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    hub = FakeHub(order["repo"], order["revision"], files, order["token"], address=("", order["port"]))
    hub.asked = _Told()
    hub.serve()


class _Told(list[tuple[str, str]]):
    """Prints what is put in."""

    def append(self, asked: tuple[str, str]) -> None:
        sys.stdout.write(f"{' '.join(asked)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
