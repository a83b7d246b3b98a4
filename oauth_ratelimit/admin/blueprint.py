"""Blueprint of the admin page: routes, authorisation, JSON responses."""

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from urllib.parse import unquote

from flask import Blueprint, Response, current_app, g, render_template, request
from flask.blueprints import BlueprintSetupState
from markupsafe import Markup, escape
from werkzeug.exceptions import BadRequest, Forbidden, NotFound, RequestEntityTooLarge
from werkzeug.wrappers import Response as AnyResponse
from werkzeug.wsgi import get_input_stream

from oauth_ratelimit.admin import changes
from oauth_ratelimit.admin.cache import NothingShared, Params, ReadCache, Reading, named_client, whole
from oauth_ratelimit.admin.client import client, client_day, denial, users
from oauth_ratelimit.admin.present import instances, overrides, state, verdict
from oauth_ratelimit.admin.security import (
    NO_SECRET_KEY,
    SECURITY_HEADERS,
    Authorize,
    CsrfTokens,
    authorized_operator,
    rejection_reason,
)
from oauth_ratelimit.admin.traffic import SPANS, clients, span_of, traffic
from oauth_ratelimit.background.health import package_version
from oauth_ratelimit.core.denial_record import parse_decision_id
from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.errors import ConfigError, StoreError
from oauth_ratelimit.flask_authlib.app_limiter import EXTENSION, AppLimiter
from oauth_ratelimit.operations import format as text_format
from oauth_ratelimit.operations.format import Record, change_text, json_safe, number, override_text, percent_text
from oauth_ratelimit.process.log import get_logger

log = get_logger(__name__)

NAME = "oauth_ratelimit_admin"
READ_CACHE = f"{EXTENSION}_admin"  # key in app.extensions
MAX_BODY_BYTES = 65_536
FAILED_DEPENDENCY = 424  # this server works, its database does not
USER_HEADER = "X-Ratelimit-User"  # percent-encoded
AFTER_HEADER = "X-Ratelimit-After"  # the time of the newest numbers that the page shows
KEPT_HEADER = "X-Ratelimit-Kept"  # of the newest ones that are kept for longer and that this window has shown
MAX_OFFSET_MIN = 14 * 60  # of any zone
READ_ONLY = "You can view this page but not change anything."

PAGES = {
    "overview": ("/", "Overview"),
    "client": ("/client", "Client"),
    "overrides": ("/overrides", "Overrides"),
    "instances": ("/instances", "Instances"),
}

PARTS: Mapping[str, Callable[[Reading, Params], Record]] = {
    "state": state,
    "verdict": verdict,
    "traffic": traffic,
    "clients": clients,
    "client": client,
    "panel": changes.panel,
    "amounts": changes.amounts,
    "limits": client,
    "users": lambda reading, params: users(reading, named_client(params)),
    "day": lambda reading, params: client_day(reading, named_client(params), zone_of(params)),
    "denial": lambda reading, params: denial(reading, parse_decision_id(params.get("decision", ""))),
    "overrides": lambda reading, params: overrides(reading),
    "instances": instances,
}
"""Parts of pages that are rendered here, at first with the page and then all that a page asks for together."""


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
        NAME, __name__, url_prefix=url, template_folder="templates", static_folder="static", static_url_path="/static"
    )

    @pages.before_request
    def check_operator() -> AnyResponse | None:
        g.ratelimit_operator = operator = authorized_operator(authorize)
        if isinstance(operator, AnyResponse):
            return operator
        without_key = None if current_app.secret_key else NO_SECRET_KEY
        g.ratelimit_read_only = without_key if may_change(operator) else READ_ONLY
        return None

    @pages.after_request
    def add_headers(response: Response) -> Response:
        is_static = (request.endpoint or "").endswith(".static")  # browsers store nothing else, and revalidate it
        response.headers.update({**SECURITY_HEADERS, "Cache-Control": "no-cache" if is_static else "no-store"})
        return response

    @pages.record_once
    def answer_beside_flask_wtf(state: BlueprintSetupState) -> None:
        """Exempt the pages before Flask-WTF looks for its token, whichever was added first: they have their own."""

        def exempt() -> None:
            csrf: Any = current_app.extensions.get("csrf")
            if hasattr(csrf, "exempt") and request.blueprint == pages.name:
                csrf.exempt(pages)

        state.app.before_request_funcs.setdefault(None, []).insert(0, exempt)

    for page, (path, _) in PAGES.items():
        pages.add_url_rule(path, page, _page, defaults={"page": page})
    pages.add_url_rule("/part/<names>", "parts", _parts)
    pages.add_url_rule(f"/api/<any({', '.join(changes.CHANGES)}):name>", "change", _change, methods=["POST"])
    return pages


def _page(page: str) -> str:
    g.ratelimit_reading = _reading(after_s=math.inf)  # a new one: the operator may come from newer numbers
    return render_template(
        f"{NAME}/{page}.html",
        page=page,
        title=visible_name(request.args.get("id") or PAGES[page][1]),
        pages=PAGES,
        part=_part,
        spans=SPANS,
        span=_chosen_span,
        version=package_version(),
        token="" if g.ratelimit_read_only else _csrf_tokens().issue(g.ratelimit_operator),
    )


def _parts(names: str) -> str:
    """Return some parts of a page, of one reading, none older than what the page shows."""
    if not PARTS.keys() >= (chosen := dict.fromkeys(names.split(","))).keys():
        raise NotFound
    g.ratelimit_reading = _reading(after_s=request.headers.get(AFTER_HEADER, -math.inf, type=float))
    return "".join(map(_part, chosen))


def _reading(*, after_s: float) -> Reading:
    kept_s = request.headers.get(KEPT_HEADER, 0.0, type=float)
    return _read_cache().reading((request.full_path, request.headers.get(USER_HEADER)), after_s=after_s, kept_s=kept_s)


def _part(name: str, *, is_now: bool = True) -> Markup:
    """Return a part of a page, or the problem; in the page without ``is_now`` only if all of it is to be read now."""
    html, data = ("", {}) if not is_now and "full" not in request.args else _read(name)
    age_s = f"{max(0.0, g.ratelimit_reading.app_limiter.now_s() - data['now_s']):.1f}" if data else ""
    frame = '<div class="part" data-part="{}" data-at="{}" data-age="{}" data-fresh="{}">{}</div>'
    return Markup(frame).format(name, data.get("now_s", 0), age_s, data.get("fresh_s", 0), Markup(html))


def _chosen_span() -> str:
    try:
        return span_of(request.args, g.ratelimit_reading.now_s)
    except ValueError:
        return ""  # a part of the page names the error


def _read(name: str) -> tuple[str, Record]:
    """Return the HTML of a part and its data. The username comes in a header, because access logs keep URLs."""
    params = {**request.args, "user": unquote(request.headers.get(USER_HEADER, ""))}
    try:
        text = Texts(zone_of(params), g.ratelimit_reading.now_s)
        data = PARTS[name](g.ratelimit_reading, params)
    except (NothingShared, StoreError, ValueError) as exc:
        kind, problem = _problem_of(exc)
        return render_template(f"{NAME}/parts/problem.html", kind=kind, problem=problem), {}
    return render_template(f"{NAME}/parts/{name}.html", text=text, format=text_format, **data), data


def _problem_of(exc: Exception) -> tuple[str, str]:
    if isinstance(exc, StoreError):
        return "database", _read_cache().outage(exc)["text"]
    return "nothing-shared" if isinstance(exc, NothingShared) else "input", str(exc)


def _change(name: str) -> Response:
    operator: str = g.ratelimit_operator
    reason = g.ratelimit_read_only or rejection_reason(request, _csrf_tokens(), operator=operator)
    if reason:
        log.warning("admin_change_refused", operator=operator, change=name, reason=reason)
        return _problem("refused", reason, status=Forbidden.code)
    try:
        body = _body()
        return _json(_read_cache().read(lambda context: changes.CHANGES[name](context, body, operator=operator)))
    except ConfigError as exc:
        fields = changes.errors_by_field(exc)
        text = "; ".join(f"{each['field']}: {each['text']}" for each in fields)
        return _problem("input", text, status=BadRequest.code, fields=fields)
    except (NothingShared, StoreError, ValueError) as exc:
        kind, text = _problem_of(exc)
        return _problem(kind, text, status=BadRequest.code if kind == "input" else FAILED_DEPENDENCY)
    finally:
        if name != "preview":
            _read_cache().expire()  # a change that instances do not see was written all the same


def _problem(kind: str, text: str, *, status: int, **more: object) -> Response:
    return _json({"problem": {"kind": kind, "text": text, **more}}, status=status)


def _body() -> dict[str, Any]:
    # A chunked body has no length: read just enough to see that it is too long.
    data = get_input_stream(request.environ, max_content_length=MAX_BODY_BYTES + 1).read()
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


def _csrf_tokens() -> CsrfTokens:
    return CsrfTokens(current_app.secret_key or "", clock=_read_cache().app_limiter.now_s)


def _read_cache() -> ReadCache:
    app_limiter: AppLimiter = current_app.extensions[EXTENSION]
    cache: ReadCache = current_app.extensions.setdefault(READ_CACHE, ReadCache(app_limiter))
    return cache


_TIME = re.compile(r"\b[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")  # as ``utc_time`` writes it


class Texts:
    """Functions that templates call for a text. Names of clients and users have their invisible characters escaped."""

    name = staticmethod(visible_name)
    change = staticmethod(lambda entry: visible_name(change_text(entry)))
    override = staticmethod(lambda override: visible_name(override_text(override)))
    number = staticmethod(lambda value: "–" if value is None else number(value))
    percent = staticmethod(lambda share: "–" if share is None else percent_text(share))

    def __init__(self, zone: tzinfo, now_s: float) -> None:
        self._zone = zone
        self._today = datetime.fromtimestamp(now_s, zone).date()

    def time(self, at_s: float | None) -> Markup:
        """Return a time such as ``15:01:20 UTC``, with the date unless it is today, with the year unless it is this."""
        if at_s is None:
            return Markup("–")
        at = datetime.fromtimestamp(at_s, UTC)
        with suppress(OverflowError):  # on the last day that there is, which MongoDB may hold
            at = at.astimezone(self._zone)
        year = "" if at.year == self._today.year else f"{at.year} "
        day = "" if at.date() == self._today else f"{at:%a} {at.day} {at:%b} {year}"
        return Markup('<time datetime="{}">{}{:%H:%M:%S} {}</time>').format(
            at.astimezone(UTC).isoformat(timespec="seconds"), day, at, at.tzname() or ""
        )

    def sentence(self, text: str) -> Markup:
        """Return a text whose times, as ``utc_time`` writes them, are in the zone."""
        return Markup(_TIME.sub(self._time_or_text, str(escape(text))))

    def _time_or_text(self, found: re.Match[str]) -> str:
        try:
            return self.time(datetime.fromisoformat(found[0]).timestamp())
        except ValueError:  # part of a name, which may be anything
            return found[0]


def zone_of(params: Params) -> tzinfo:
    """Return the time zone that is some minutes ahead of UTC."""
    offset = whole(params, "utc_offset", 0, least=-MAX_OFFSET_MIN, most=MAX_OFFSET_MIN)
    return timezone(timedelta(minutes=offset)) if offset else UTC
