"""The blueprint: who is let in, and which request goes where."""

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
from oauth_ratelimit.admin.cache import NothingToRead, Question, ReadCache
from oauth_ratelimit.admin.security import Authorize, Tokens, operator_of, protect, why_refused
from oauth_ratelimit.background.health import package_version
from oauth_ratelimit.errors import ConfigError, StoreError
from oauth_ratelimit.flask_authlib.app_limiter import EXTENSION, AppLimiter
from oauth_ratelimit.operations.serialize import finite

log = structlog.get_logger(__name__)

NAME = "oauth_ratelimit_admin"
READINGS = f"{EXTENSION}_admin"
MAX_BODY_BYTES = 65_536
USER_HEADER = "X-Ratelimit-User"  # percent-encoded

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
    """Return the operators' page: charts, who is near a limit, why, and overrides.

    Args:
        authorize: Called with each request, in its context. Returns the name of the operator who sends it, under which
            changes are put on record; None for anybody else, who is answered 403; or a response, such as a redirect to
            the login.
        url: Where.
        may_change: Whether the operator of a name may change anything, and not only look.
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
    def let_in() -> AnyResponse | None:
        found = operator_of(authorize)
        if isinstance(found, AnyResponse):
            return found
        g.ratelimit_operator = found
        return None

    @pages.after_request
    def bind(response: Response) -> Response:
        return protect(response, is_static=(request.endpoint or "").endswith(".static"))

    for page, (path, title) in PAGES.items():
        pages.add_url_rule(path, page, _shower(page, title, may_change=may_change))
    for name, look in api.LOOKS.items():
        pages.add_url_rule(f"/api/{name}", f"api_{name}", _answerer(look))
    for name, change in changes.CHANGES.items():
        pages.add_url_rule(
            f"/api/{name}", f"change_{name}", _changer(change, name=name, may_change=may_change), methods=["POST"]
        )
    return pages


def _shower(page: str, title: str, *, may_change: Callable[[str], bool]) -> Callable[[], str]:
    def show() -> str:
        tokens = _tokens()
        operator: str = g.ratelimit_operator
        may = may_change(operator)
        return render_template(
            f"{NAME}/{page}.html",
            page=page,
            title=title,
            pages=PAGES,
            operator=operator,
            version=package_version(),
            may_change=may and tokens is not None,
            why_read_only=None if may and tokens else _why_read_only(may),
            token=tokens.issue(operator) if may and tokens else "",
        )

    return show


def _why_read_only(may: bool) -> str:
    if may:
        return "Changes need app.secret_key, the same on all instances; it is not set."
    return "You may look, and not change anything."


def _answerer(look: api.Look) -> Callable[[], Response]:
    def answer() -> Response:
        try:
            return _json(look(_readings(), _question()))
        except NothingToRead as exc:
            return _json({"problem": {"kind": "nothing-shared", "text": str(exc)}})
        except StoreError as exc:
            return _json({"problem": {"kind": "database", "text": str(exc)}})
        except ValueError as exc:  # a ConfigError is one, too
            return _json({"problem": {"kind": "question", "text": str(exc)}}, status=400)

    return answer


def _question() -> Question:
    """Return the arguments. A user's name comes in a header, because addresses are kept in access logs."""
    return {**request.args, "user": unquote(request.headers.get(USER_HEADER, ""))}


def _changer(change: changes.Change, *, name: str, may_change: Callable[[str], bool]) -> Callable[[], Response]:
    def answer() -> Response:
        operator: str = g.ratelimit_operator
        reason = why_refused(request, _tokens(), operator=operator)
        if reason is None and not may_change(operator):
            reason = _why_read_only(may=False)
        if reason is not None:
            log.warning("admin_change_refused", operator=operator, change=name, reason=reason)
            return _json({"problem": {"kind": "refused", "text": reason}}, status=Forbidden.code)
        try:
            return _json(change(_readings(), _body(), operator=operator))
        except (NothingToRead, StoreError) as exc:
            # Nothing is wrong with this server: what it depends on does not answer.
            return _json({"problem": {"kind": "database", "text": str(exc)}}, status=424)
        except ConfigError as exc:
            return _json({"problem": {"kind": "input", "text": "; ".join(exc.problems)}}, status=BadRequest.code)
        except ValueError as exc:
            return _json({"problem": {"kind": "input", "text": str(exc)}}, status=BadRequest.code)

    return answer


def _body() -> dict[str, Any]:
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise RequestEntityTooLarge
    # A chunked body does not say how long it is: no more is read than tells that it is too long.
    request.stream = cast(IO[bytes], LimitedStream(request.stream, MAX_BODY_BYTES + 1, is_max=True))
    data = request.get_data(cache=False)
    if len(data) > MAX_BODY_BYTES:
        raise RequestEntityTooLarge
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise ValueError("the body of the request is no JSON object")
    return body


def _json(content: object, *, status: int = 200) -> Response:
    return Response(json.dumps(finite(content), allow_nan=False), status=status, mimetype="application/json")


def _tokens() -> Tokens | None:
    secret_key = current_app.secret_key
    return Tokens(secret_key, clock=time.time) if secret_key else None


def _gate() -> AppLimiter:
    gate: AppLimiter = current_app.extensions[EXTENSION]
    return gate


def _readings() -> ReadCache:
    readings: ReadCache = current_app.extensions.setdefault(READINGS, ReadCache(_gate()))
    return readings
