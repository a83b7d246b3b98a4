"""Who sees the page, and what a browser is told about it."""

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
def test_somebody_else(open_page: Callable[..., Page], nobody: Any) -> None:
    """Whom the application does not name is told nothing, by no address."""
    page = open_page(authorize=lambda: nobody)
    answers = {path: page.get(path) for path in PATHS}

    assert dict.fromkeys(PATHS, (403, "You are not authorised to see this page.\n")) == {
        path: (answer.status_code, answer.text) for path, answer in answers.items()
    }


def test_somebody_who_has_to_sign_in(open_page: Callable[..., Page]) -> None:
    """The application may send somebody to its login instead."""
    response = open_page(authorize=lambda: redirect("/login")).get("")

    assert (302, "/login") == (response.status_code, response.location)


def test_change_by_somebody_else(open_page: Callable[..., Page], mongo_uri: str) -> None:
    """Nobody else changes anything, whatever they send along."""
    operators = iter(["ann", None])
    page = open_page(authorize=lambda: next(operators), store={"uri": mongo_uri})

    assert 403 == page.send("apply", {"kind": "mode", "mode": "off", "reason": "x"}).status_code


@pytest.mark.parametrize("answer", [True, 1, b"ann"], ids=repr)
def test_answer_that_is_no_name(open_page: Callable[..., Page], answer: Any) -> None:
    """An application that answers with anything but a name has made a mistake, and lets nobody in by it."""
    page = open_page(authorize=lambda: answer)
    page.app.testing = True

    with pytest.raises(TypeError, match="the operator's name"):
        page.get("")


@pytest.mark.parametrize("path", PATHS)
def test_headers(open_page: Callable[..., Page], path: str) -> None:
    """Every answer binds the browser: no script and no style but ours, no frame around it, nothing kept, no outside."""
    headers = open_page().get(path).headers
    rules = dict(rule.split(" ", 1) for rule in headers["Content-Security-Policy"].split("; "))

    assert {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "frame-ancestors": "'none'",
    }.items() <= (rules.items())
    assert not any("unsafe" in rule or "http" in rule or "*" in rule for rule in rules.values())
    assert "no-cache" if path.startswith("static") else "no-store" == headers["Cache-Control"]
    assert ("DENY", "nosniff", "no-referrer") == (
        headers["X-Frame-Options"],
        headers["X-Content-Type-Options"],
        headers["Referrer-Policy"],
    )


@pytest.mark.parametrize("path", [path.lstrip("/") for path, _ in PAGES.values()])
def test_markup_needs_nothing_that_the_policy_forbids(open_page: Callable[..., Page], path: str) -> None:
    """No page has a script, a style or a handler inline, or names another host."""
    text = open_page().get(path).text

    assert '<script type="module" src="/ratelimit/static/' in text
    for forbidden in ("<style", "style=", "onclick", "onload", "<script>", "http://", "https://", "//cdn"):
        assert forbidden not in text


def test_page_that_nobody_has_registered(open_page: Callable[..., Page]) -> None:
    """There is no page unless the application registers one."""
    assert 404 == open_page().browser.get("/admin/").status_code
