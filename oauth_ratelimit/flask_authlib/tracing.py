"""What leads from a request to the traces and logs of other systems. Looked at only when a denial is logged."""

import re

from flask import has_request_context, request
from structlog.contextvars import get_contextvars
from werkzeug.datastructures import Headers

from oauth_ratelimit.core.denial_record import Trace
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.observe.otel import current_trace_id

MAX_LENGTH = 128  # of an id that others have chosen

# Later versions may have more parts than the four of version 00.
_TRACEPARENT = re.compile(
    r"(?!ff)(?:00(?=.{53}$)|(?!00)[0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)
_REQUEST_ID = re.compile(rf"[!-~]{{1,{MAX_LENGTH}}}")


def trace_of_request(request_id_header: str | None) -> Trace:
    """Return the trace of the request being handled.

    What the application has bound to structlog's context comes first, then the trace that OpenTelemetry is at, then
    the headers: ``traceparent`` of W3C Trace Context, and the one that carries a request id. A value that is not well
    formed is as good as none.

    Args:
        request_id_header: Its name, None to look for none.
    """
    bound = get_contextvars()
    headers = request.headers if has_request_context() else Headers()
    return Trace(
        _bound(bound.get("trace_id")) or current_trace_id() or trace_id_of(headers.get("traceparent", "")),
        _bound(bound.get("request_id")) or _request_id(headers.get(request_id_header or "", "")),
    )


def trace_id_of(traceparent: str) -> str | None:
    """Return the trace id in a ``traceparent`` header, 32 hexadecimal digits; None if the header is not well formed."""
    found = _TRACEPARENT.fullmatch(traceparent)
    return found[1] if found else None


def _request_id(value: str) -> str | None:
    return value if _REQUEST_ID.fullmatch(value) else None


def _bound(value: object) -> str | None:
    return None if value is None else storable_name(str(value)[:MAX_LENGTH])
