"""Authorisation and response headers."""

from collections.abc import Callable
from typing import Any

import pytest
from flask import redirect

from oauth_ratelimit.admin.blueprint import PAGES
from tests.admin.conftest import Page

PATHS = [path.lstrip("/") for path, _ in PAGES.values()] + [
    "api/status",
    "api/top",
    "api/traffic",
    "api/client?id=app",
    "api/client-day?id=app",
    "api/overrides",
    "api/what-if",
    "static/page.css",
    "static/overview.js",
    "static/vendor/uPlot.esm.js",
]


@pytest.mark.parametrize("nobody", [None, ""])
def test_unauthorised_request_gets_403_everywhere(open_page: Callable[..., Page], nobody: Any) -> None:
    page = open_page(authorize=lambda: nobody)
    answers = {path: page.get(path) for path in PATHS}

    assert dict.fromkeys(PATHS, (403, "You are not authorised to see this page.\n")) == {
        path: (answer.status_code, answer.text) for path, answer in answers.items()
    }


def test_response_of_the_application_is_sent_instead(open_page: Callable[..., Page]) -> None:
    response = open_page(authorize=lambda: redirect("/login")).get("")

    assert (302, "/login") == (response.status_code, response.location)


def test_unauthorised_change_is_rejected(open_page: Callable[..., Page], mongo_uri: str) -> None:
    operators = iter(["ann", None])
    page = open_page(authorize=lambda: next(operators), store={"uri": mongo_uri})

    assert 403 == page.send("apply", {"kind": "mode", "mode": "off", "reason": "x"}).status_code


@pytest.mark.parametrize("answer", [True, 1, b"ann"], ids=repr)
def test_operator_that_is_not_a_name_is_an_error(open_page: Callable[..., Page], answer: Any) -> None:
    page = open_page(authorize=lambda: answer)
    page.app.testing = True

    with pytest.raises(TypeError, match="the operator's name"):
        page.get("")


@pytest.mark.parametrize("path", PATHS)
def test_every_response_has_security_headers(open_page: Callable[..., Page], path: str) -> None:
    headers = open_page().get(path).headers
    rules = dict(rule.split(" ", 1) for rule in headers["Content-Security-Policy"].split("; "))

    assert {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "frame-ancestors": "'none'",
    }.items() <= (rules.items())
    assert not any("unsafe" in rule or "http" in rule or "*" in rule for rule in rules.values())
    assert ("no-cache" if path.startswith("static") else "no-store") == headers["Cache-Control"]
    assert ("DENY", "nosniff", "no-referrer") == (
        headers["X-Frame-Options"],
        headers["X-Content-Type-Options"],
        headers["Referrer-Policy"],
    )


@pytest.mark.parametrize("path", [path.lstrip("/") for path, _ in PAGES.values()])
def test_pages_have_no_inline_scripts_and_no_other_hosts(open_page: Callable[..., Page], path: str) -> None:
    text = open_page().get(path).text

    assert '<script type="module" src="/ratelimit/static/' in text
    for forbidden in ("<style", "style=", "onclick", "onload", "<script>", "http://", "https://", "//cdn"):
        assert forbidden not in text


def test_page_exists_only_where_it_is_registered(open_page: Callable[..., Page]) -> None:
    assert 404 == open_page().browser.get("/admin/").status_code
