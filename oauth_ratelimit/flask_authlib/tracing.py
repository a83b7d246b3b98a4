"""Trace id and request id of the current request, for the log entry about a denial."""

import re

from flask import has_request_context, request
from werkzeug.datastructures import Headers

from oauth_ratelimit.core.denial_record import Trace
from oauth_ratelimit.core.key import storable_name
from oauth_ratelimit.observe.observer import current_trace_id
from oauth_ratelimit.process.log import bound_values

MAX_LENGTH = 128  # of an id from outside

# Versions after 00 may have more than four parts.
_TRACEPARENT = re.compile(
    r"(?!ff)(?:00(?=.{53}$)|(?!00)[0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)
_REQUEST_ID = re.compile(rf"[!-~]{{1,{MAX_LENGTH}}}")


def trace_of_request(request_id_header: str | None) -> Trace:
    """Return the trace of the current request.

    Values bound to structlog's context come first, then OpenTelemetry's current trace, then the headers:
    ``traceparent`` of W3C Trace Context, and the one with the request id. Malformed values are ignored.
    """
    bound = bound_values()
    headers = request.headers if has_request_context() else Headers()
    request_id = _REQUEST_ID.fullmatch(headers.get(request_id_header or "", ""))
    return Trace(
        _bound(bound.get("trace_id")) or current_trace_id() or trace_id_of(headers.get("traceparent", "")),
        _bound(bound.get("request_id")) or (request_id and request_id[0]),
    )


def trace_id_of(traceparent: str) -> str | None:
    """Return the trace id in a ``traceparent`` header, 32 hexadecimal digits; None if the header is not well formed."""
    found = _TRACEPARENT.fullmatch(traceparent)
    return found[1] if found else None


def _bound(value: object) -> str | None:
    return None if value is None else storable_name(str(value)[:MAX_LENGTH])
