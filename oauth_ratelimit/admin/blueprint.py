"""Blueprint of the admin page: routes, authorisation, JSON responses."""

import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, timedelta, timezone, tzinfo
from typing import IO, Any, cast
from urllib.parse import unquote

from flask import Blueprint, Response, current_app, g, render_template, request
from markupsafe import Markup
from werkzeug.exceptions import BadRequest, Forbidden, RequestEntityTooLarge
from werkzeug.wrappers import Response as AnyResponse
from werkzeug.wsgi import LimitedStream

from oauth_ratelimit.admin import changes
from oauth_ratelimit.admin.cache import NothingShared, Params, ReadCache
from oauth_ratelimit.admin.client import client, client_day, denial, users
from oauth_ratelimit.admin.form import current, errors_by_field
from oauth_ratelimit.admin.marks import overrides
from oauth_ratelimit.admin.present import instances, state, top, verdict
from oauth_ratelimit.admin.security import (
    NO_SECRET_KEY,
    Authorize,
    CsrfTokens,
    add_security_headers,
    authorized_operator,
    rejection_reason,
)
from oauth_ratelimit.admin.text import Texts
from oauth_ratelimit.admin.traffic import SPAN_NAMES, clients, span_of, traffic
from oauth_ratelimit.background.health import package_version
from oauth_ratelimit.config.errors import show
from oauth_ratelimit.errors import ConfigError, StoreError
from oauth_ratelimit.flask_authlib.app_limiter import EXTENSION, AppLimiter
from oauth_ratelimit.operations.serialize import Record, json_safe
from oauth_ratelimit.process.log import get_logger

log = get_logger(__name__)

NAME = "oauth_ratelimit_admin"
READ_CACHE = f"{EXTENSION}_admin"  # key in app.extensions
MAX_BODY_BYTES = 65_536
FAILED_DEPENDENCY = 424  # this server works, its database does not
USER_HEADER = "X-Ratelimit-User"  # percent-encoded
AGE_HEADER = "X-Ratelimit-Age"  # of the data, seconds
PART_HEADER = "X-Ratelimit-Part"
MAX_OFFSET_MIN = 14 * 60  # of any zone
READ_ONLY = "You can view this page but not change anything."

PAGES = {
    "overview": ("/", "Overview"),
    "client": ("/client", "Client"),
    "overrides": ("/overrides", "Overrides"),
    "instances": ("/instances", "Instances"),
}

Query = Callable[[ReadCache, Params], Record]

PARTS: Mapping[str, Query] = {
    "state": state,
    "verdict": verdict,
    "clients": clients,
    "top": top,
    "client": client,
    "limits": client,
    "users": users,
    "day": lambda cache, params: client_day(cache, params, _zone(params)),
    "denial": denial,
    "instances": instances,
}
"""Parts of pages that are rendered here, at first with the page and then each by itself."""

QUERIES: Mapping[str, Query] = {
    "traffic": traffic,
    "overrides": overrides,
    "current": current,
    "outcome": changes.outcome,
}
"""Data that scripts draw."""

READS = (*(f"part/{name}" for name in PARTS), *(f"api/{name}" for name in QUERIES))
"""Paths of both, below that of the page."""


def admin_blueprint(
    authorize: Authorize, url: str = "/ratelimit", *, may_change: Callable[[str], bool] = lambda operator: True
) -> Blueprint:
    """Return the admin page: charts, usage of limits, explanations and overrides.

    Args:
        authorize: Called for each request, in its context. Returns the name of the operator, which the history of
            changes keeps; None for anybody else, who gets a 403; or a response, such as a redirect to the login.
        url: Path of the page.
        may_change: Takes an operator's name and returns True if this operator may make changes.
    """
    pages = Blueprint(
        NAME,
        __name__,
        url_prefix=url,
        template_folder="templates",
        static_folder="static",
        static_url_path="/static",
    )

    @pages.before_request
    def check_operator() -> AnyResponse | None:
        g.ratelimit_operator = operator = authorized_operator(authorize)
        return operator if isinstance(operator, AnyResponse) else None

    @pages.after_request
    def add_headers(response: Response) -> Response:
        return add_security_headers(response, is_static=(request.endpoint or "").endswith(".static"))

    for page, (path, title) in PAGES.items():
        pages.add_url_rule(path, page, _page_view(page, title, may_change=may_change))
    pages.add_url_rule("/part/<any(" + ", ".join(PARTS) + "):name>", "part", _part_view)
    for name, query in QUERIES.items():
        pages.add_url_rule(f"/api/{name}", f"api_{name}", _query_view(query))
    for name, change in changes.CHANGES.items():
        pages.add_url_rule(
            f"/api/{name}", f"change_{name}", _change_view(change, name=name, may_change=may_change), methods=["POST"]
        )
    return pages


def _page_view(page: str, title: str, *, may_change: Callable[[str], bool]) -> Callable[[], str]:
    def view() -> str:
        tokens = _csrf_tokens()
        operator: str = g.ratelimit_operator
        read_only_reason = None if tokens is not None else NO_SECRET_KEY
        if not may_change(operator):
            read_only_reason = READ_ONLY
        return render_template(
            f"{NAME}/{page}.html",
            page=page,
            title=title,
            pages=PAGES,
            part=_render_part,
            span_names=SPAN_NAMES,
            span=_chosen_span,
            operator=operator,
            version=package_version(),
            read_only_reason=read_only_reason,
            token=tokens.issue(operator) if tokens and not read_only_reason else "",
        )

    return view


def _part_view(name: str) -> Response:
    """Return a part of a page. Its header tells it from a login page, and how old its data are."""
    html, data = _part(name)
    response = Response(html, mimetype="text/html")
    response.headers[PART_HEADER] = name
    response.headers[AGE_HEADER] = f"{_age_s(data):.1f}"
    response.headers["X-Ratelimit-Fresh"] = str(data.get("fresh_s", 0))
    return response


def _render_part(name: str, *, is_now: bool = True) -> Markup:
    """Return a part in the page that is opened; without ``is_now`` only if all of the page is to be read now."""
    html, data = ("", {}) if not is_now and "full" not in request.args else _part(name)
    frame = '<div class="part" data-part="{}" data-age="{}" data-fresh="{}">{}</div>'
    return Markup(frame).format(name, f"{_age_s(data):.1f}" if data else "", data.get("fresh_s", ""), Markup(html))


def _chosen_span() -> str:
    try:
        return span_of(request.args, _read_cache().app_limiter.now_s())
    except ValueError:
        return ""  # a part of the page names the error


def _age_s(data: Record) -> float:
    return max(0.0, _read_cache().app_limiter.now_s() - data.get("now_s", 0.0)) if data.get("now_s") else 0.0


def _part(name: str) -> tuple[str, Record]:
    """Return the HTML of a part and its data, or the problem."""
    data: Record = {}
    try:
        params = _params()
        text = Texts(_zone(params), _read_cache().app_limiter.now_s())
        data = PARTS[name](_read_cache(), params)
    except (NothingShared, StoreError, ValueError) as exc:
        kind, words, since_s = _problem_of(exc)
        return render_template(f"{NAME}/parts/problem.html", kind=kind, words=words, since_s=since_s), data
    return render_template(f"{NAME}/parts/{name}.html", text=text, **data), data


def _zone(params: Params) -> tzinfo:
    """Return the time zone that is some minutes ahead of UTC."""
    offset = params.get("utc_offset") or "0"
    if not re.fullmatch("-?[0-9]{1,3}", offset) or abs(int(offset)) > MAX_OFFSET_MIN:
        allowed = f"minutes ahead of UTC from -{MAX_OFFSET_MIN} to {MAX_OFFSET_MIN}"
        raise ValueError(f"utc_offset: got {show(offset)}, allowed: {allowed}")
    return timezone(timedelta(minutes=int(offset))) if int(offset) else UTC


def _problem_of(exc: Exception) -> tuple[str, str, float | None]:
    """Return the kind of a problem, its text, and since when nothing is shared."""
    if isinstance(exc, NothingShared):
        return "nothing-shared", str(exc), None
    if isinstance(exc, StoreError):
        return ("database", *_read_cache().outage(exc))
    return "input", str(exc), None


def _query_view(query: Query) -> Callable[[], Response]:
    def view() -> Response:
        data: Record = {}

        def read() -> Record:
            data.update(query(_read_cache(), _params()))
            return data

        response = _answer(read)
        response.headers[AGE_HEADER] = f"{_age_s(data):.1f}"
        return response

    return view


def _params() -> Params:
    """Return the arguments. The username comes in a header, because access logs keep URLs."""
    return {**request.args, "user": unquote(request.headers.get(USER_HEADER, ""))}


def _change_view(change: changes.Change, *, name: str, may_change: Callable[[str], bool]) -> Callable[[], Response]:
    def view() -> Response:
        operator: str = g.ratelimit_operator
        reason = rejection_reason(request, _csrf_tokens(), operator=operator)
        if reason is None and not may_change(operator):
            reason = READ_ONLY
        if reason is not None:
            log.warning("admin_change_refused", operator=operator, change=name, reason=reason)
            return _problem("refused", reason, status=Forbidden.code)
        return _answer(lambda: change(_read_cache(), _body(), operator=operator), failed_status=FAILED_DEPENDENCY)

    return view


def _answer(compute: Callable[[], object], *, failed_status: int = 200) -> Response:
    """Return the answer to a query or change, or the problem; ``failed_status`` is for those of the database."""
    try:
        return _json(compute())
    except ConfigError as exc:
        fields = errors_by_field(exc)
        text = "; ".join(f"{each['field']}: {each['text']}" for each in fields)
        return _problem("input", text, status=BadRequest.code, fields=fields)
    except (NothingShared, StoreError, ValueError) as exc:
        kind, text, since_s = _problem_of(exc)
        return _problem(kind, text, status=BadRequest.code if kind == "input" else failed_status, since_s=since_s)


def _problem(kind: str, text: str, *, status: int, **more: object) -> Response:
    return _json({"problem": {"kind": kind, "text": text, **more}}, status=status)


def _body() -> dict[str, Any]:
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise RequestEntityTooLarge
    # A chunked body has no length: read just enough to see that it is too long.
    request.stream = cast(IO[bytes], LimitedStream(request.stream, MAX_BODY_BYTES + 1, is_max=True))
    data = request.get_data(cache=False)
    if len(data) > MAX_BODY_BYTES:
        raise RequestEntityTooLarge
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")
    return body


def _json(content: object, *, status: int = 200) -> Response:
    return Response(json.dumps(json_safe(content), allow_nan=False), status=status, mimetype="application/json")


def _csrf_tokens() -> CsrfTokens | None:
    secret_key = current_app.secret_key
    return CsrfTokens(secret_key, clock=time.time) if secret_key else None


def _read_cache() -> ReadCache:
    app_limiter: AppLimiter = current_app.extensions[EXTENSION]
    cache: ReadCache = current_app.extensions.setdefault(READ_CACHE, ReadCache(app_limiter))
    return cache
