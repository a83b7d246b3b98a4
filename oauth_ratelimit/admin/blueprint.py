"""Blueprint of the admin page: routes, authorisation, JSON responses."""

import json
import time
from collections.abc import Callable
from typing import IO, Any, cast
from urllib.parse import unquote

import structlog
from flask import Blueprint, Response, current_app, g, render_template, request
from werkzeug.exceptions import BadRequest, Forbidden, RequestEntityTooLarge
from werkzeug.wrappers import Response as AnyResponse
from werkzeug.wsgi import LimitedStream

from oauth_ratelimit.admin import api, changes
from oauth_ratelimit.admin.cache import NothingShared, Params, ReadCache
from oauth_ratelimit.admin.form import FormError
from oauth_ratelimit.admin.security import (
    NO_SECRET_KEY,
    Authorize,
    CsrfTokens,
    add_security_headers,
    authorized_operator,
    rejection_reason,
)
from oauth_ratelimit.background.health import package_version
from oauth_ratelimit.errors import StoreError
from oauth_ratelimit.flask_authlib.app_limiter import EXTENSION, AppLimiter
from oauth_ratelimit.operations.serialize import finite

log = structlog.get_logger(__name__)

NAME = "oauth_ratelimit_admin"
READ_CACHE = f"{EXTENSION}_admin"  # key in app.extensions
MAX_BODY_BYTES = 65_536
FAILED_DEPENDENCY = 424  # this server works, its database does not
USER_HEADER = "X-Ratelimit-User"  # percent-encoded
READ_ONLY = "You can view this page but not change anything."

PAGES = {
    "overview": ("/", "Overview"),
    "client": ("/client", "Client"),
    "what-if": ("/what-if", "What if"),
    "overrides": ("/overrides", "Overrides"),
    "instances": ("/instances", "Instances"),
}


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
        operator = authorized_operator(authorize)
        if isinstance(operator, AnyResponse):
            return operator
        g.ratelimit_operator = operator
        return None

    @pages.after_request
    def add_headers(response: Response) -> Response:
        return add_security_headers(response, is_static=(request.endpoint or "").endswith(".static"))

    for page, (path, title) in PAGES.items():
        pages.add_url_rule(path, page, _page_view(page, title, may_change=may_change))
    for name, query in api.QUERIES.items():
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
            operator=operator,
            version=package_version(),
            read_only_reason=read_only_reason,
            token=tokens.issue(operator) if tokens and not read_only_reason else "",
        )

    return view


def _query_view(query: api.Query) -> Callable[[], Response]:
    def view() -> Response:
        try:
            return _json(query(_read_cache(), _params()))
        except NothingShared as exc:
            return _json({"problem": {"kind": "nothing-shared", "text": str(exc)}})
        except StoreError as exc:
            return _json({"problem": _database_problem(exc)})
        except ValueError as exc:  # a ConfigError is one, too
            return _json({"problem": {"kind": "input", "text": str(exc)}}, status=BadRequest.code)

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
            return _json({"problem": {"kind": "refused", "text": reason}}, status=Forbidden.code)
        try:
            return _json(change(_read_cache(), _body(), operator=operator))
        except NothingShared as exc:
            return _json({"problem": {"kind": "database", "text": str(exc)}}, status=FAILED_DEPENDENCY)
        except StoreError as exc:
            return _json({"problem": _database_problem(exc)}, status=FAILED_DEPENDENCY)
        except FormError as exc:
            problem = {"kind": "input", "text": str(exc), "fields": exc.data()}
            return _json({"problem": problem}, status=BadRequest.code)
        except ValueError as exc:
            return _json({"problem": {"kind": "input", "text": str(exc)}}, status=BadRequest.code)

    return view


def _database_problem(error: StoreError) -> dict[str, object]:
    outage = _read_cache().outage(error)
    return {"kind": "database", "text": outage.text, "since_s": outage.since_s}


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
    return Response(json.dumps(finite(content), allow_nan=False), status=status, mimetype="application/json")


def _csrf_tokens() -> CsrfTokens | None:
    secret_key = current_app.secret_key
    return CsrfTokens(secret_key, clock=time.time) if secret_key else None


def _read_cache() -> ReadCache:
    app_limiter: AppLimiter = current_app.extensions[EXTENSION]
    cache: ReadCache = current_app.extensions.setdefault(READ_CACHE, ReadCache(app_limiter))
    return cache
