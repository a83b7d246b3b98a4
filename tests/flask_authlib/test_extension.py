"""Attaching to applications and servers."""

from pathlib import Path
from typing import Any

import pytest
from authlib.integrations.flask_oauth2 import AuthorizationServer
from structlog.testing import capture_logs

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.background import worker
from oauth_ratelimit.blueprints import health_blueprint, metrics_blueprint
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.errors import ConfigError
from testbed.clock import Clock
from tests.support.apps import add_route, app_limiter_of, make_app, make_server, protected_app, token_status
from tests.support.sites import config


def test_application_without_configuration_runs_dry_and_says_so_once() -> None:
    with capture_logs() as logs, protected_app() as app:
        assert [200, 200] == [token_status(app), token_status(app)]
        settings = app_limiter_of(app).settings
        decision = app_limiter_of(app).limiter.peek("some-client", "some-user")

    assert Mode.DRY_RUN is settings.policies.mode
    assert settings.store.uri is None
    assert decision.limit is not None
    assert [("running_unconfigured", "dry-run", False)] == [
        (entry["event"], entry["mode"], entry["shared"])
        for entry in logs
        if entry["event"] not in ("ratelimit_started", "authlib_vulnerable")
    ]


@pytest.mark.parametrize("value", ["off", " OFF "])
def test_emergency_switch_wins_over_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str) -> None:
    """It starts nothing, and asks nothing of the file, which may be broken."""
    monkeypatch.setenv("OAUTH_RATELIMIT_MODE", value)
    monkeypatch.setattr(worker, "Limiter", None)
    path = tmp_path / "ratelimit.yaml"
    path.write_text("limits: {client: 10/minute}\n")
    for source in (config(limit=1), str(path)):
        settings = {"OAUTH_RATELIMIT_CONFIG": source, "OAUTH_RATELIMIT_MODE": "enforce"}
        with capture_logs() as logs, protected_app(**settings) as app:
            for page in (metrics_blueprint(), health_blueprint()):
                app.register_blueprint(page)
            assert [200, 200, 200] == [token_status(app) for _ in range(3)]
            assert Mode.OFF is app_limiter_of(app).settings.policies.mode
            health, metrics = (app.test_client().get(path) for path in ("/health", "/metrics"))
            assert [200, 200] == [health.status_code, metrics.status_code]
            assert ("ok", None) == (health.json["status"], health.json["instance"])

        events = [entry for entry in logs if entry["event"] != "authlib_vulnerable"]  # with the lowest version
        assert [("ratelimit_started", "off")] == [(entry["event"], entry["mode"]) for entry in events]


def test_environment_with_another_mode_is_ignored_and_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAUTH_RATELIMIT_MODE", "dry-run")
    with capture_logs() as logs, protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=1)) as app:
        assert [200, 429] == [token_status(app), token_status(app)]
    (entry,) = [entry for entry in logs if entry["event"] == "environment_ignored"]
    assert ("OAUTH_RATELIMIT_MODE", "dry-run", ["off"]) == (entry["variable"], entry["value"], entry["allowed"])


def test_bare_off_of_a_yaml_file_is_a_mode_of_the_application() -> None:
    with protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=1), OAUTH_RATELIMIT_MODE=False) as app:
        assert [200, 200] == [token_status(app), token_status(app)]


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"OAUTH_RATELIMIT_CONFIG": {"limits": {"user": [{"limit": 0, "window": 1}]}}}, "limits.user[0].limit"),
        ({"OAUTH_RATELIMIT_CONFIG": {}, "OAUTH_RATELIMIT_MODE": "enforced"}, "OAUTH_RATELIMIT_MODE"),
        ({"OAUTH_RATELIMIT_MODE": "enforced"}, "OAUTH_RATELIMIT_MODE"),
    ],
    ids=["bad limit", "bad mode", "bad mode and no configuration"],
)
def test_invalid_configuration_in_the_code_stops_the_start(settings: Any, path: str) -> None:
    """The error names the path, and application and server stay as they were."""
    app = make_app(**settings)
    server = make_server(app)

    with pytest.raises(ConfigError) as caught:
        OAuthRateLimit(app, server)

    assert path in str(caught.value)
    assert "oauth_ratelimit" not in app.extensions
    assert type(server) is AuthorizationServer


def test_second_extension_on_an_application_is_refused() -> None:
    """Two extensions would count each request twice."""
    with (
        protected_app(OAUTH_RATELIMIT_CONFIG=config()) as app,
        pytest.raises(RuntimeError, match="has an OAuthRateLimit already"),
    ):
        OAuthRateLimit(app, make_server(make_app()))


def test_one_extension_and_one_server_serve_several_applications() -> None:
    extension = OAuthRateLimit(clock=Clock())
    first, second = make_app(OAUTH_RATELIMIT_CONFIG=config(limit=1)), make_app(OAUTH_RATELIMIT_CONFIG=config(limit=2))
    other = make_app()
    server = make_server(first)
    add_route(second, server)
    add_route(other, server)
    extension.init_app(first, server)
    extension.init_app(second, server)

    assert [200, 429] == [token_status(first) for _ in range(2)]
    assert [200, 200, 429] == [token_status(second) for _ in range(3)]
    assert [200, 200, 200] == [token_status(other) for _ in range(3)]
    app_limiter_of(first).close()
    app_limiter_of(second).close()


class Starlette:
    extensions: dict[str, Any]


class DjangoServer(AuthorizationServer):  # type: ignore[misc]
    """Authlib's server for Django has the same methods as the one for Flask."""

    __module__ = "authlib.integrations.django_oauth2.authorization_server"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            lambda app, server: (Starlette(), server),
            r"got .*Starlette as the application\. OAuthRateLimit supp",
        ),
        (lambda app, server: (app.wsgi_app, server), "others can call oauth_ratelimit.Limiter"),
        (lambda app, server: (app, DjangoServer()), "DjangoServer as the server, which is not Authlib's for Flask"),
        (lambda app, server: (server, app), "the application comes first"),
        (lambda app, server: (app, None), "needs both"),
        (lambda app, server: (None, server), "needs both"),
        (lambda app, server: (app, "server"), "got builtins.str as the server, which is not Authlib's for Flask"),
    ],
    ids=["Starlette", "WSGI", "Django", "swapped", "no server", "no application", "text"],
)
def test_what_is_not_supported_is_refused(arguments: Any, message: str) -> None:
    app = make_app()
    with pytest.raises(TypeError, match=message):
        OAuthRateLimit(*arguments(app, make_server(app)))

    assert "oauth_ratelimit" not in app.extensions
