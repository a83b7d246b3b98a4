"""Changes that somebody else's site, an old page or a wrong body would make."""

import json
import time
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from structlog.testing import capture_logs

from oauth_ratelimit.admin.blueprint import MAX_BODY_BYTES
from oauth_ratelimit.admin.security import TOKEN_LIFE_S, CsrfTokens
from tests.admin.conftest import SAME_SITE, Page
from tests.support.helpers import Clock

BODY = {"kind": "mode", "client_id": None, "mode": "off", "reason": "a test"}


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"Sec_Fetch_Site": "cross-site"}, "Not a request from this site"),
        ({"Sec_Fetch_Site": "same-site"}, "Not a request from this site"),
        ({"Sec_Fetch_Site": "none"}, "Not a request from this site"),
        ({"Sec_Fetch_Site": "", "Origin": "http://evil.example"}, "Not a request from this site"),
        ({"Sec_Fetch_Site": "", "Origin": "null"}, "Not a request from this site"),
        ({"Sec_Fetch_Site": ""}, "Not a request from this site"),
        ({"X_Ratelimit_Token": ""}, "Reload it"),
        ({"X_Ratelimit_Token": "1.0"}, "Reload it"),
        ({"X_Ratelimit_Token": "ä.²"}, "Reload it"),
        ({"Content_Type": "text/plain"}, "application/json"),
        ({"Content_Type": "application/x-www-form-urlencoded"}, "application/json"),
    ],
    ids=str,
)
def test_request_of_another_site(page: Page, headers: dict[str, str], words: str) -> None:
    """A change that another site could have made is refused, said so in the log, and not made."""
    with capture_logs() as logs:
        responses = [page.send(name, BODY, **headers) for name in ("preview", "apply", "remove")]

    assert [(403, "refused")] * 3 == [(each.status_code, each.json["problem"]["kind"]) for each in responses]
    assert all(words in each.json["problem"]["text"] for each in responses)
    assert ["ann"] * 3 == [entry["operator"] for entry in logs if entry["event"] == "admin_change_refused"]
    assert [] == page.ask("overrides")["history"]


def test_browser_that_sends_no_fetch_metadata(page: Page) -> None:
    """Over plain HTTP browsers send only where a request comes from; that is enough."""
    assert 200 == page.send("apply", BODY, Sec_Fetch_Site="", Origin="http://localhost").status_code


@pytest.mark.parametrize(("length", "expected"), [(MAX_BODY_BYTES, 200), (MAX_BODY_BYTES + 1, 413), (10**7, 413)])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["with its length", "chunked"])
def test_body_that_is_long(page: Page, length: int, expected: int, is_chunked: bool) -> None:
    """A body may have so many bytes, whether or not it says beforehand how many it has; of more, few are read."""
    stream = BytesIO(json.dumps(BODY).encode().ljust(length))
    headers = {**SAME_SITE, "X-Ratelimit-Token": page.token(), "Content-Type": "application/json"}
    how: dict[str, Any] = {"content_length": length}
    if is_chunked:
        # What a server makes of a chunked body: a stream with an end, of no stated length.
        headers["Transfer-Encoding"] = "chunked"
        how = {"environ_overrides": {"wsgi.input_terminated": True}}
    response = page.browser.post("/ratelimit/api/apply", input_stream=stream, headers=headers, **how)

    assert expected == response.status_code
    assert stream.tell() <= MAX_BODY_BYTES + 1


def test_other_methods(page: Page) -> None:
    """Nothing is changed by a link, and no other site is given leave to ask."""
    for name in ("apply", "remove", "preview"):
        answers = [page.get(f"api/{name}"), page.browser.options(f"/ratelimit/api/{name}", headers=SAME_SITE)]
        assert 405 == answers[0].status_code
        assert not [key for answer in answers for key, _ in answer.headers if key.startswith("Access-Control")]


def test_token_of_another_operator(open_page: Callable[..., Page], mongo_uri: str) -> None:
    """A token is good for the operator whose page it came with, on every instance, and for nobody else."""
    first, second, other = (
        open_page(authorize=lambda name=name: name, store={"uri": mongo_uri}) for name in ("ann", "ann", "bob")
    )
    token = first.token()

    assert [200, 403] == [each.send("apply", BODY, X_Ratelimit_Token=token).status_code for each in (second, other)]


def test_token_that_is_old() -> None:
    """A token ends after some hours, and one from the future is none."""
    clock = Clock()
    tokens = CsrfTokens("secret", clock=clock)
    token = tokens.issue("ann")
    valid = {}
    for age_s in (-1, 0, TOKEN_LIFE_S, TOKEN_LIFE_S + 1):
        clock.now_s = Clock().now_s + age_s
        valid[age_s] = tokens.is_valid(token, "ann")

    assert {-1: False, 0: True, TOKEN_LIFE_S: True, TOKEN_LIFE_S + 1: False} == valid
    assert not CsrfTokens("another", clock=Clock()).is_valid(token, "ann")


def test_operator_who_may_only_look(open_page: Callable[..., Page], mongo_uri: str) -> None:
    """Somebody who may not change anything is given no token and no form, and a change is refused all the same."""
    page = open_page(store={"uri": mongo_uri}, may_change=lambda operator: operator == "bob")

    assert "" == page.token()
    assert "New override" not in page.get("overrides").text
    assert "not change anything" in page.get("overrides").text
    token = CsrfTokens("a secret", clock=time.time).issue("ann")
    assert 403 == page.send("apply", BODY, X_Ratelimit_Token=token).status_code
    assert 200 == page.get("api/overrides").status_code


def test_application_without_a_secret(open_page: Callable[..., Page], mongo_uri: str) -> None:
    """Without a secret key nothing can be signed: the page shows, says why, and changes nothing."""
    page = open_page(secret_key=None, store={"uri": mongo_uri})
    response = page.send("apply", BODY)

    assert 403 == response.status_code
    assert "app.secret_key" in response.json["problem"]["text"]
    assert "app.secret_key" in page.get("overrides").text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([], "must be a JSON object"),
        ({}, "kind"),
        ({**BODY, "kind": "everything"}, "kind"),
        ({**BODY, "kind": ["mode"]}, "kind"),
        ({**BODY, "mode": "on"}, "mode"),
        ({**BODY, "client_id": 7}, "client_id"),
        ({**BODY, "client_id": ""}, "client id"),
        ({**BODY, "client_id": "a" * 2000}, "client id"),
        ({**BODY, "client_id": "\ud800"}, "client id"),
        ({**BODY, "reason": ""}, "reason"),
        ({**BODY, "reason": "   "}, "reason"),
        ({**BODY, "reason": "x" * 1001}, "reason"),
        ({**BODY, "for": "soon"}, "for: allowed"),
        ({**BODY, "until": "1999-01-01T00:00:00Z"}, "until: 1999"),
        ({"kind": "trusted", "client_id": None, "reason": "x"}, "trusting everybody"),
        ({"kind": "limit", "client_id": "app", "reason": "x"}, "limits"),
        ({"kind": "limit", "client_id": "app", "reason": "x", "limits": {"user": []}}, "limits.user"),
        ({"kind": "limit", "client_id": "app", "reason": "x", "limits": {"user": ["0/minute"]}}, "limits.user[0]"),
        ({"kind": "limit", "client_id": "app", "reason": "x", "limits": {"users": ["1/minute"]}}, "limits"),
        ({"kind": "limit", "client_id": "app", "reason": "x", "limits": {"user": ["{limit: ["]}}, "YAML"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_change_that_makes_no_sense(page: Page, body: Any, words: str) -> None:
    """A change that cannot be made is refused with words that help, and nothing is stored."""
    for name in ("preview", "apply"):
        response = page.send(name, body)
        assert (400, "input") == (response.status_code, response.json["problem"]["kind"]), response.text
        assert words in response.json["problem"]["text"]
    assert [] == page.ask("overrides")["history"]


def test_body_that_is_too_long(page: Page) -> None:
    """A body that no form could have made is not read."""
    assert 413 == page.send("apply", {**BODY, "more": "x" * 100_000}).status_code
