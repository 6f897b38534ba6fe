"""Asks for pictures over HTTP and prints what came, a line of JSON each. Runs in a pod, on nothing but Python.

Its argument is JSON. {url, prompt, seed, steps} asks once; with `workers` beside them, so many threads ask until the
file /tmp/stop is there; {read: url} prints the text of a page.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from typing import Any

LIMIT_S = 60.0


def main() -> None:
    order = json.loads(sys.argv[1])
    if "read" in order:
        with urllib.request.urlopen(order["read"], timeout=LIMIT_S) as answer:
            say(answer.read().decode())
    elif "workers" in order:
        threads = [threading.Thread(target=go_on, args=(order, i)) for i in range(order["workers"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    else:
        say(json.dumps(ask(order, order["seed"], keep=True)))


def say(line: str) -> None:
    """A whole line at once, whichever thread it is from."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def go_on(order: dict[str, Any], worker: int) -> None:
    """One request after the other."""
    seed = 1000 * worker
    while not os.path.exists("/tmp/stop"):
        seed += 1
        answer = ask(order, seed)
        say(json.dumps(answer))
        if answer["status"] != 200:
            time.sleep(0.2)


def ask(order: dict[str, Any], seed: int, *, keep: bool = False) -> dict[str, Any]:
    """One picture, and how it went."""
    body = {"prompt": order["prompt"], "seed": seed, "num_inference_steps": order["steps"]}
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(order["url"], json.dumps(body).encode(), headers)
    began = time.monotonic()
    picture = None
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
            picture = json.load(response)["data"][0]["b64_json"]
        status, code = 200, ""
    except urllib.error.HTTPError as error:
        status, code = error.code, code_of(error.read())
    except (OSError, ValueError) as error:  # refused, reset, out of time, cut off
        status, code = 0, repr(error)
    return {
        "at_s": time.time(),
        "seconds": time.monotonic() - began,
        "status": status,
        "code": code,
        "picture": picture if keep else None,
    }


def code_of(text: bytes) -> str:
    """The word for the error; the text itself, where it is no error of ours."""
    try:
        return str(json.loads(text)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return text.decode(errors="replace")[:200]


if __name__ == "__main__":
    main()
