"""Web pages of another site in a real browser: every flow of OAuth works, and none locks its visitor out."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from flask import Flask, Response, render_template_string, request

from oauth_ratelimit import OAuthRateLimit
from testbed.clock import wait_until
from testbed.oauth_server.database import DEMO_CLIENTS, MOBILE_APP, WEB_SHOP, seed
from tests.admin.browser import Browser, open_browser
from tests.support.apps import app_limiter_of
from tests.support.flows import password_of, post
from tests.support.guarded import LIMITS, protect_for_all
from tests.support.sites import Site, protected, serving

pytestmark = pytest.mark.chromium

USER_TOKENS = 3
TRIES = 10
SETTINGS = {
    "mode": "enforce",
    "limits": {"user": [f"{USER_TOKENS} per day"]},
    "guard": {"mode": "enforce", "limits": LIMITS},
}
CALLBACK = """<main></main><script>
const posted = {{ request.form | tojson }};
const answer = location.search + location.hash + JSON.stringify(posted);
document.querySelector("main").innerText = answer;
if (parent !== window) parent.postMessage(answer, "*");
</script>"""
FRAME = """<main></main><iframe src="{{ request.args.url }}"></iframe><script>
addEventListener("message", (event) => document.querySelector("main").innerText = event.data);
</script>"""
ATTACK = """<main></main><script>
const fields = new URLSearchParams({{ fields | tojson }});
const posts = [...Array({{ tries }}).keys()].flatMap(() => {{ modes | tojson }}.map(
  (mode) => fetch("{{ server }}/token", {method: "POST", mode, body: fields}).catch(() => null)));
for (let at = 0; at < {{ tries }}; at++) {
  const frame = document.body.appendChild(Object.assign(document.createElement("iframe"), {name: "frame" + at}));
  const form = document.body.appendChild(document.createElement("form"));
  Object.assign(form, {method: "post", action: "{{ server }}/token", target: frame.name});
  for (const [name, value] of fields) {
    form.appendChild(Object.assign(document.createElement("input"), {name, value}));
  }
  form.submit();
  new Image().src = "{{ image }}&attempt=" + at;
}
Promise.all(posts).then(() => document.querySelector("main").innerText = "sent");
</script>"""


@dataclass
class OtherSite:
    """A site on another host than the server, with the callback of the server's clients."""

    server: Site
    url: str
    answers: list[tuple[str, int]] = field(default_factory=list)  # path and status of what the server has answered

    def authorize_url(self, client_id: str, response_type: str, **more: str) -> str:
        asked = {"client_id": client_id, "response_type": response_type, "redirect_uri": f"{self.url}/callback"}
        return f"{self.server.url}/authorize?{urlencode({**asked, 'user': 'alice', 'scope': 'openid profile', **more})}"

    def login(self) -> int:
        """Log the visitor in from the machine of the browser."""
        form = {"grant_type": "password", "username": "alice", "password": password_of("alice")}
        return post(f"{self.server.url}/token", MOBILE_APP, form).status_code


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture
def other(tmp_path: Path) -> Iterator[OtherSite]:
    app = Flask("other-site")
    pages: dict[str, dict[str, Any]] = {}
    app.add_url_rule("/callback", "callback", lambda: render_template_string(CALLBACK), methods=["GET", "POST"])
    app.add_url_rule("/link", "link", lambda: f'<a href="{request.args["url"].replace("&", "&amp;")}">Log in</a>')
    app.add_url_rule("/frame", "frame", lambda: render_template_string(FRAME))
    app.add_url_rule("/attack", "attack", lambda: render_template_string(ATTACK, **pages["attack"]))
    answers: list[tuple[str, int]] = []

    def protect(database: Any, settings: Any, extension: OAuthRateLimit) -> Flask:
        protected_app = protect_for_all(database, settings, extension)

        @protected_app.after_request
        def note(response: Response) -> Response:
            answers.append((request.path, response.status_code))
            return response

        return protected_app

    with ExitStack() as stack:
        url = stack.enter_context(serving(app)).replace("127.0.0.1", "localhost")
        database = tmp_path / "server.sqlite3"
        seed(database, clients=[replace(client, redirect_uris=(f"{url}/callback",)) for client in DEMO_CLIENTS])
        server = stack.enter_context(protected(database, SETTINGS, protect=protect))
        site = OtherSite(server, url, answers)
        pages["attack"] = {
            "server": server.url,
            "image": site.authorize_url(WEB_SHOP.client_id, "token"),
            "fields": {"grant_type": "password", "client_id": "mobile-app", "username": "alice", "password": "wrong"},
            "tries": TRIES,
            "modes": ["no-cors", "cors"],
        }
        yield site


def test_visitor_of_another_site_logs_in_by_the_code_flow(browser: Browser, other: OtherSite) -> None:
    url = other.authorize_url(WEB_SHOP.client_id, "code", scope="profile", state="some-state")
    browser.open(f"{other.url}/link?{urlencode({'url': url})}")
    browser.click("a")
    browser.wait_for("code=")
    code = browser.text("main").partition("code=")[2].partition("&")[0]
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": f"{other.url}/callback"}

    assert 200 == post(f"{other.server.url}/token", WEB_SHOP, form).status_code


@pytest.mark.parametrize(
    "asked",
    [{"response_type": "token"}, {"response_type": "id_token token", "nonce": "n", "response_mode": "form_post"}],
    ids=["implicit", "form_post"],
)
def test_visitor_of_another_site_gets_a_token(browser: Browser, other: OtherSite, asked: dict[str, str]) -> None:
    """The server answers with a redirect, or with a page whose form the browser sends to the other site."""
    browser.open(f"{other.url}/link?{urlencode({'url': other.authorize_url('mobile-app', **asked)})}")
    browser.click("a")
    browser.wait_for("access_token")


def test_page_of_another_site_renews_its_token_in_an_iframe(browser: Browser, other: OtherSite) -> None:
    url = other.authorize_url("mobile-app", "id_token token", nonce="n", prompt="none")
    browser.open(f"{other.url}/frame?{urlencode({'url': url})}")
    browser.wait_for("access_token")


def test_page_of_another_site_locks_its_visitor_out_of_nothing(browser: Browser, other: OtherSite) -> None:
    browser.open(f"{other.url}/attack")
    browser.wait_for("sent")
    wait_until(lambda: len(other.answers) >= 4 * TRIES, "all requests are answered")

    found = Counter(other.answers)
    assert found["/token", 403] == 2 * TRIES  # forms, and scripts without CORS
    assert found["/token", 400] == LIMITS["user"][0]["limit"]  # scripts with CORS are checked, and count apart
    assert found["/token", 429] == TRIES - found["/token", 400]
    assert 200 == other.login()
    job = {"grant_type": "client_credentials"}
    assert 200 == post(f"{other.server.url}/token", WEB_SHOP, job).status_code


def test_navigations_of_another_site_do_not_spend_the_tokens_of_its_visitor(browser: Browser, other: OtherSite) -> None:
    for _ in range(2 * USER_TOKENS):
        browser.open(f"{other.url}/link?{urlencode({'url': other.authorize_url('mobile-app', 'token')})}")
        browser.click("a")
        browser.wait_for("#")

    assert "error=temporarily_unavailable" in browser.text("main")
    limiter = app_limiter_of(other.server.app).limiter
    assert USER_TOKENS == limiter.peek("mobile-app", "alice").remaining
    assert 200 == other.login()
