"""Authorisation, response headers, cross-site requests, CSRF tokens, long bodies, read-only operators."""

import json
import time
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from flask import redirect
from flask_wtf import CSRFProtect
from structlog.testing import capture_logs

from oauth_ratelimit.admin.blueprint import MAX_BODY_BYTES, PAGES, PARTS
from oauth_ratelimit.admin.security import TOKEN_LIFE_S, CsrfTokens
from testbed.clock import Clock
from tests.admin.conftest import DRY_RUN, LIMIT, SAME_SITE, Page

PATHS = [
    *(path.lstrip("/") for path, _ in PAGES.values()),
    *(f"part/{name}" for name in PARTS),
    *("static/page.css", "static/page.js", "static/vendor/uPlot.min.js"),
]


@pytest.mark.parametrize("nobody", [None, ""])
def test_unauthorised_request_gets_403_everywhere(open_page: Callable[..., Page], nobody: Any) -> None:
    page = open_page(authorize=lambda: nobody)
    answers = [page.get(path) for path in PATHS] + [page.browser.post("/ratelimit/api/apply", json=DRY_RUN)]

    assert {(403, "You are not authorised to see this page.\n")} == {(each.status_code, each.text) for each in answers}


def test_response_of_the_application_is_sent_instead(open_page: Callable[..., Page]) -> None:
    response = open_page(authorize=lambda: redirect("/login")).get("")

    assert (302, "/login") == (response.status_code, response.location)


@pytest.mark.parametrize("answer", [True, 1, b"ann"], ids=repr)
def test_operator_that_is_not_a_name_is_an_error(open_page: Callable[..., Page], answer: Any) -> None:
    page = open_page(authorize=lambda: answer)
    page.app.testing = True

    with pytest.raises(TypeError, match="the operator's name"):
        page.get("")


def test_operator_name_with_markup_is_escaped(open_page: Callable[..., Page], mongo_uri: str) -> None:
    page = open_page(authorize=lambda: "<b>ann</b>\ud800", store={"uri": mongo_uri})

    assert "&lt;b&gt;ann&lt;/b&gt;?" in page.get("overrides").text
    assert 200 == page.send("apply", LIMIT).status_code


@pytest.mark.parametrize("path", PATHS)
def test_every_response_has_security_headers(open_page: Callable[..., Page], path: str) -> None:
    headers = open_page().get(path).headers
    rules = dict(rule.split(" ", 1) for rule in headers["Content-Security-Policy"].split("; "))

    assert {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }.items() <= rules.items()
    assert not any("unsafe" in rule or "http" in rule or "*" in rule for rule in rules.values())
    assert ("no-cache" if path.startswith("static") else "no-store") == headers["Cache-Control"]
    assert ("DENY", "nosniff", "no-referrer") == (
        headers["X-Frame-Options"],
        headers["X-Content-Type-Options"],
        headers["Referrer-Policy"],
    )


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Sec_Fetch_Site": "cross-site"}, "does not come from this site"),
        ({"Sec_Fetch_Site": "same-site"}, "does not come from this site"),
        ({"Sec_Fetch_Site": "none"}, "does not come from this site"),
        ({"Sec_Fetch_Site": "", "Origin": "http://evil.example"}, "does not come from this site"),
        ({"Sec_Fetch_Site": "", "Origin": "null"}, "does not come from this site"),
        ({"Sec_Fetch_Site": ""}, "does not come from this site"),
        ({"X_Ratelimit_Token": ""}, "Reload it"),
        ({"X_Ratelimit_Token": "1.0"}, "Reload it"),
        ({"X_Ratelimit_Token": "ä.²"}, "Reload it"),
        ({"Content_Type": "text/plain"}, "application/json"),
        ({"Content_Type": "application/x-www-form-urlencoded"}, "application/json"),
    ],
    ids=str,
)
def test_change_from_another_site_is_rejected_and_logged(page: Page, headers: dict[str, str], words: str) -> None:
    with capture_logs() as logs:
        responses = [page.send(name, DRY_RUN, **headers) for name in ("preview", "apply", "remove")]

    assert [(403, "refused")] * 3 == [(each.status_code, each.json["problem"]["kind"]) for each in responses]
    assert all(words in each.json["problem"]["text"] for each in responses)
    assert ["ann"] * 3 == [entry["operator"] for entry in logs if entry["event"] == "admin_change_refused"]
    assert [] == page.history()


@pytest.mark.parametrize(("length", "expected"), [(MAX_BODY_BYTES, 200), (MAX_BODY_BYTES + 1, 413), (10**7, 413)])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["with its length", "chunked"])
def test_body_over_the_maximum_is_rejected_without_reading_it(
    page: Page, length: int, expected: int, is_chunked: bool
) -> None:
    stream = BytesIO(json.dumps(DRY_RUN).encode().ljust(length))
    headers = {**SAME_SITE, "X-Ratelimit-Token": page.token(), "Content-Type": "application/json"}
    how: dict[str, Any] = {"content_length": length}
    if is_chunked:
        # What a server makes of a chunked body: a stream with an end, of no stated length.
        headers["Transfer-Encoding"] = "chunked"
        how = {"environ_overrides": {"wsgi.input_terminated": True}}
    response = page.browser.post("/ratelimit/api/apply", input_stream=stream, headers=headers, **how)

    assert expected == response.status_code
    assert stream.tell() <= MAX_BODY_BYTES + 1


def test_changes_need_post_and_get_no_cors_headers(page: Page) -> None:
    for name in ("apply", "remove", "preview"):
        answers = [page.get(f"api/{name}"), page.browser.options(f"/ratelimit/api/{name}", headers=SAME_SITE)]
        assert 405 == answers[0].status_code
        assert not [key for answer in answers for key, _ in answer.headers if key.startswith("Access-Control")]


def test_csrf_token_is_valid_for_its_operator_on_every_instance(open_page: Callable[..., Page], mongo_uri: str) -> None:
    first, second, other = (
        open_page(authorize=lambda name=name: name, store={"uri": mongo_uri}) for name in ("ann", "ann", "bob")
    )
    token = first.token()

    assert [200, 403] == [each.send("apply", DRY_RUN, X_Ratelimit_Token=token).status_code for each in (second, other)]
    by_origin = second.send("apply", DRY_RUN, Sec_Fetch_Site="", Origin="http://localhost")
    assert 200 == by_origin.status_code, "an origin is enough without fetch metadata"


def test_csrf_token_expires() -> None:
    clock = Clock()
    tokens = CsrfTokens("secret", clock=clock)
    token = tokens.issue("ann")
    valid = {}
    for age_s in (-1, 0, TOKEN_LIFE_S, TOKEN_LIFE_S + 1):
        clock.now_s = Clock().now_s + age_s
        valid[age_s] = tokens.is_valid(token, "ann")

    assert {-1: False, 0: True, TOKEN_LIFE_S: True, TOKEN_LIFE_S + 1: False} == valid
    assert not CsrfTokens("another", clock=Clock()).is_valid(token, "ann")


def test_read_only_operator_gets_no_token_and_no_form(open_page: Callable[..., Page], mongo_uri: str) -> None:
    page = open_page(store={"uri": mongo_uri}, may_change=lambda operator: operator == "bob")

    assert "" == page.token()
    assert "panel-form" not in page.get("overrides").text
    assert "not change anything" in page.get("overrides").text
    token = CsrfTokens("a secret", clock=time.time).issue("ann")
    assert 403 == page.send("apply", DRY_RUN, X_Ratelimit_Token=token).status_code
    assert 200 == page.get("part/overrides").status_code


def test_page_without_secret_key_is_read_only(open_page: Callable[..., Page], mongo_uri: str) -> None:
    page = open_page(secret_key=None, store={"uri": mongo_uri})
    response = page.send("apply", DRY_RUN)

    assert 403 == response.status_code
    assert "app.secret_key" in response.json["problem"]["text"]
    assert "app.secret_key" in page.get("overrides").text


@pytest.mark.parametrize("is_first", [True, False], ids=["before the page", "after it"])
def test_page_answers_beside_flask_wtf(open_page: Callable[..., Page], mongo_uri: str, is_first: bool) -> None:
    """Its own tokens are checked; another view has those of Flask-WTF."""
    page = open_page(store={"uri": mongo_uri}, **({"prepare": CSRFProtect} if is_first else {}))
    if not is_first:
        CSRFProtect(page.app)
    assert {200} == {page.get(path).status_code for path in PATHS}
    assert 200 == page.send("apply", LIMIT).status_code
    assert 403 == page.send("apply", LIMIT, X_Ratelimit_Token="other").status_code
    assert 400 == page.browser.post("/token").status_code
