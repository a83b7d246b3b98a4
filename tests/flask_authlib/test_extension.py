"""Attaching to applications and servers."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from authlib.integrations.flask_oauth2 import AuthorizationServer
from structlog.testing import capture_logs

from oauth_ratelimit import OAuthRateLimit
from oauth_ratelimit.background import worker
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.errors import ConfigError
from tests.support.apps import add_route, app_limiter_of, make_app, make_server, protected_app, token_status
from tests.support.helpers import Clock
from tests.support.sites import config


def test_application_without_configuration_runs_dry_and_says_so_once() -> None:
    """The default limits apply in this process only."""
    with capture_logs() as logs, protected_app() as app:
        assert [200, 200] == [token_status(app), token_status(app)]
        settings = app_limiter_of(app).settings
        decision = app_limiter_of(app).limiter.peek("some-client", "some-user")

    assert Mode.DRY_RUN is settings.policies.mode
    assert settings.store.uri is None
    assert decision.limit is not None
    assert [("running_unconfigured", "dry-run", False)] == [
        (entry["event"], entry["mode"], entry["shared"]) for entry in logs if entry["event"] != "ratelimit_started"
    ]


@pytest.mark.parametrize("kind", [dict, str, Path])
def test_configuration_is_a_mapping_or_the_path_of_a_file(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text(yaml.safe_dump(config(limit=1)))
    with protected_app(OAUTH_RATELIMIT_CONFIG=config() if kind is dict else kind(path)) as app:
        assert [200, 429] == [token_status(app), token_status(app)]


def test_mode_and_uri_of_the_application_override_the_file() -> None:
    """``app.config`` wins over the configuration."""
    settings = {
        "OAUTH_RATELIMIT_CONFIG": config(limit=1, store={"uri": "mongodb://file.example/oauth"}),
        "OAUTH_RATELIMIT_MODE": "dry-run",
        "OAUTH_RATELIMIT_MONGO_URI": "mongodb://app.example/oauth",
    }
    with protected_app(**settings) as app:
        assert Mode.DRY_RUN is app_limiter_of(app).settings.policies.mode
        assert "mongodb://app.example/oauth" == app_limiter_of(app).settings.store.uri


@pytest.mark.parametrize("value", ["off", " OFF "])
def test_emergency_switch_wins_over_everything(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("OAUTH_RATELIMIT_MODE", value)
    monkeypatch.setattr(worker, "Limiter", None)
    settings = {"OAUTH_RATELIMIT_CONFIG": config(limit=1), "OAUTH_RATELIMIT_MODE": "enforce"}
    with capture_logs() as logs, protected_app(**settings) as app:
        assert [200, 200, 200] == [token_status(app) for _ in range(3)]
        assert Mode.OFF is app_limiter_of(app).settings.policies.mode

    assert [("ratelimit_started", "off")] == [(entry["event"], entry["mode"]) for entry in logs]


def test_process_that_is_switched_off_starts_with_a_broken_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The emergency switch asks nothing of the file."""
    monkeypatch.setenv("OAUTH_RATELIMIT_MODE", "off")
    (tmp_path / "ratelimit.yaml").write_text("limits: {client: 10/minute}\n")
    with protected_app(OAUTH_RATELIMIT_CONFIG=str(tmp_path / "ratelimit.yaml")) as app:
        assert {200} == {token_status(app) for _ in range(20)}


def test_environment_with_another_mode_is_ignored_and_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAUTH_RATELIMIT_MODE", "dry-run")
    with capture_logs() as logs, protected_app(OAUTH_RATELIMIT_CONFIG=config(limit=1)) as app:
        assert [200, 429] == [token_status(app), token_status(app)]
    (entry,) = [entry for entry in logs if entry["event"] == "environment_ignored"]
    assert ("OAUTH_RATELIMIT_MODE", "dry-run", ["off"]) == (entry["variable"], entry["value"], entry["allowed"])


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"OAUTH_RATELIMIT_CONFIG": {"limits": {"user": [{"limit": 0, "window": 1}]}}}, "limits.user[0].limit"),
        ({"OAUTH_RATELIMIT_CONFIG": "/no/such/file.yaml"}, "/no/such/file.yaml"),
        ({"OAUTH_RATELIMIT_CONFIG": {}, "OAUTH_RATELIMIT_MODE": "enforced"}, "OAUTH_RATELIMIT_MODE"),
        ({"OAUTH_RATELIMIT_MODE": "enforced"}, "OAUTH_RATELIMIT_MODE"),
    ],
    ids=["bad limit", "no file", "bad mode", "bad mode and no configuration"],
)
def test_invalid_configuration_stops_the_start(settings: Any, path: str) -> None:
    """The error names the path, and application and server stay as they were."""
    app = make_app(**settings)
    server = make_server(app)

    with pytest.raises(ConfigError) as caught:
        OAuthRateLimit(app, server)

    assert path in str(caught.value)
    assert "oauth_ratelimit" not in app.extensions
    assert "generate_token" not in vars(server)


def test_second_extension_on_an_application_is_refused() -> None:
    """Two extensions would count each request twice."""
    with (
        protected_app(OAUTH_RATELIMIT_CONFIG=config()) as app,
        pytest.raises(RuntimeError, match="has an OAuthRateLimit already"),
    ):
        OAuthRateLimit(app, make_server(make_app()))


@pytest.mark.parametrize("missing", ["app", "server"])
def test_application_without_server_or_server_without_application_is_refused(missing: str) -> None:
    app = make_app()
    arguments = {"app": app, "server": make_server(app)} | {missing: None}

    with pytest.raises(TypeError, match="needs both"):
        OAuthRateLimit(**arguments)


class Starlette:
    """An application of another framework."""

    def __init__(self) -> None:
        self.extensions: dict[str, Any] = {}


class DjangoServer(AuthorizationServer):  # type: ignore[misc]
    """Authlib's server for Django has the same methods as the one for Flask."""

    __module__ = "authlib.integrations.django_oauth2.authorization_server"


@pytest.mark.parametrize("application", [Starlette(), Starlette, lambda environ, start_response: []])
def test_application_of_another_framework_is_refused(application: Any) -> None:
    with pytest.raises(TypeError, match=r"got .* as the application\. OAuthRateLimit supports Flask") as caught:
        OAuthRateLimit(application, make_server(make_app()))

    assert "Quart, FastAPI, Django and others can call oauth_ratelimit.Limiter" in str(caught.value)


def test_server_of_another_framework_is_refused() -> None:
    app = make_app()

    with pytest.raises(TypeError, match="DjangoServer as the server, which is not for Flask"):
        OAuthRateLimit(app, make_server(app, DjangoServer))

    assert "oauth_ratelimit" not in app.extensions


def test_swapped_arguments_are_refused() -> None:
    app = make_app()

    with pytest.raises(TypeError, match="the application comes first"):
        OAuthRateLimit(make_server(app), app)


def test_one_extension_and_one_server_serve_several_applications() -> None:
    """Each application has limits and counters of its own."""
    extension = OAuthRateLimit(clock=Clock())
    first, second = make_app(OAUTH_RATELIMIT_CONFIG=config(limit=1)), make_app(OAUTH_RATELIMIT_CONFIG=config(limit=2))
    server = make_server(first)
    add_route(second, server)
    extension.init_app(first, server)
    extension.init_app(second, server)

    assert [200, 429] == [token_status(first) for _ in range(2)]
    assert [200, 200, 429] == [token_status(second) for _ in range(3)]
    app_limiter_of(first).close()
    app_limiter_of(second).close()


def test_application_without_the_extension_is_not_limited_by_an_attached_server() -> None:
    """The server looks for the limiter of the application that it answers for."""
    other = make_app()
    server = make_server(other)
    OAuthRateLimit(make_app(OAUTH_RATELIMIT_CONFIG=config(limit=1)), server)

    assert [200, 200, 200] == [token_status(other) for _ in range(3)]
