"""Requests that a web page of another site sends through its visitor's browser, as fetch metadata tells.

Only browsers send it, and pages cannot change it. It is sent over HTTPS, and to the machine itself.
"""

from flask import Response, abort, request

from oauth_ratelimit.core.key import logged_name
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.flask_authlib.app_limiter import AppLimiter

MAX_PATH_LENGTH = 200  # in the log
REFUSAL = '{"error": "access_denied", "error_description": "Web pages of other sites cannot send this request."}'
REFUSED = "a web page of another site, such as one with a hidden form, could lock its visitor out"


def is_cross_site() -> bool:
    """Return True if a browser says that a page of another site has caused the current request."""
    return request.headers.get("Sec-Fetch-Site") == "cross-site"


def refuse_cross_site(app_limiter: AppLimiter) -> None:
    """Answer 403 to a request with credentials that another site sends by a form, a link or an image.

    A script that may read the answer shows the mode ``cors``. The server may expect it, so its failures count apart. In
    a dry run of the guard nothing is refused.
    """
    if not is_cross_site() or request.headers.get("Sec-Fetch-Mode") == "cors":
        return
    mode = Mode.OFF
    with app_limiter.fail_open("guard_failed"):
        guard = app_limiter.guard()
        if guard is not None:
            mode, path = guard.mode, logged_name(request.path[:MAX_PATH_LENGTH])
            app_limiter.log.warning("cross_site_refused", mode=mode.value, path=path, hint=REFUSED)
    if mode is Mode.ENFORCE:
        headers = {"Cache-Control": "no-store"}
        abort(Response(REFUSAL, 403, headers, content_type="application/json"))
