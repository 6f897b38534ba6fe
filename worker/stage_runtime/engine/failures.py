"""What the log says of a failed request: its id, its error and where that came from; nothing that a client sent."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Final

from stage_runtime.core.errors import EngineDeadError
from stage_runtime.core.outcome import Failed
from stage_runtime.core.request import Request

QUOTED: Final = 12
"""So many characters in a row of what a client sent are a quotation."""

_TENSOR: Final = re.compile(r"\b(?:tensor|array|Parameter containing)\W*[(:\[]", re.IGNORECASE)

log = logging.getLogger(__name__)


def log_failure(request: Request, failed: Failed) -> None:
    """Log it. What ended with the whole engine is told by that end, once for all."""
    if failed.status == EngineDeadError.status:
        return
    level = logging.ERROR if failed.status >= 500 else logging.INFO
    fields = {"request_id": failed.request_id, "status": failed.status, "code": failed.code}
    texts = (value for value in request.arguments.values() if isinstance(value, str))
    said = failed.message if quotable(failed.message, texts) else "(it quotes the request)"
    trace = {"trace": failed.trace} if failed.trace and failed.status >= 500 else {}
    log.log(level, "request failed", extra={**fields, "error": said, **trace})


def quotable(message: str, texts: Iterable[str]) -> bool:
    """Whether `message` holds no tensor, and no part of `texts`: of short ones the whole."""
    if _TENSOR.search(message):
        return False
    low = message.casefold()
    for text in texts:
        sent = text.casefold()
        size = min(QUOTED, len(sent))
        if sent.strip() and any(sent[at : at + size] in low for at in range(len(sent) - size + 1)):
            return False
    return True
