"""The public surface of the package."""

import inspect
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import oauth_ratelimit
from oauth_ratelimit import Decision, Limiter, OAuthRateLimit

PROMISED = {
    "OAuthRateLimit": ("init_app",),
    "RateLimitMixin": (),
    "RateLimited": ("get_headers", "status_code"),
    "Limiter": ("check", "peek", "sync", "close", "counts", "reconfigure", "preload"),
    "load_config": (),
    "Settings": (),
    "Decision": (
        "allowed",
        "limit",
        "window_s",
        "remaining",
        "reset_after_s",
        "retry_after_s",
        "policy",
        "mode",
        "would_deny",
        "trusted",
    ),
    "Mode": ("OFF", "DRY_RUN", "ENFORCE"),
    "RateLimitError": (),
    "ConfigError": (),
    "StoreError": (),
    "StoreRejected": (),
    "StoreUnavailable": (),
}


def test_package_offers_the_promised_names_and_no_other() -> None:
    """A further public name is a promise that nobody has made."""
    assert sorted(PROMISED) == sorted(oauth_ratelimit.__all__)
    extra = {
        name
        for name, value in vars(oauth_ratelimit).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name not in PROMISED
    }
    assert set() == extra


@pytest.mark.parametrize("name", PROMISED)
def test_public_name_has_the_promised_members(name: str) -> None:
    thing = getattr(oauth_ratelimit, name)
    assert inspect.getdoc(thing)
    annotated = {member for kind in getattr(thing, "__mro__", ()) for member in getattr(kind, "__annotations__", ())}
    for member in PROMISED[name]:
        assert hasattr(thing, member) or member in annotated
        value = getattr(thing, member, None)
        assert not inspect.isroutine(value) or inspect.getdoc(value)


@pytest.mark.parametrize("name", [name for name in PROMISED if inspect.isclass(getattr(oauth_ratelimit, name))])
def test_every_public_member_is_documented(name: str) -> None:
    """Members without a leading underscore have docstrings."""
    kind = getattr(oauth_ratelimit, name)
    for base in kind.__mro__:
        if not base.__module__.startswith("oauth_ratelimit"):
            continue
        for member, value in vars(base).items():
            if not member.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
                assert inspect.getdoc(getattr(base, member)), f"{base.__name__}.{member}"


def test_limiter_and_extension_have_the_promised_arguments() -> None:
    """Names and defaults are those of the documentation."""
    check, peek = (inspect.signature(method) for method in (Limiter.check, Limiter.peek))
    assert check == peek
    assert ["self", "client_id", "username", "endpoint", "cost", "grant_type"] == list(check.parameters)
    defaults = {name: parameter.default for name, parameter in check.parameters.items()}
    assert (None, "token", 1, None) == tuple(defaults[name] for name in ("username", "endpoint", "cost", "grant_type"))
    assert ["settings", "store", "clock"] == list(inspect.signature(Limiter).parameters)[:3]
    assert ["app", "server"] == list(inspect.signature(OAuthRateLimit).parameters)[:2]


def test_attributes_of_a_decision_are_documented() -> None:
    """Each is in the docstring of the class or has one of its own."""
    text = inspect.getdoc(Decision) or ""
    for member in PROMISED["Decision"]:
        assert f"{member}:" in text or inspect.getdoc(getattr(Decision, member))


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("admin", ["admin_blueprint"]),
        ("blueprints", ["health_blueprint", "metrics_blueprint"]),
        ("testing", ["MIDNIGHT_S", "FrozenClock", "FrozenRateLimit"]),
    ],
)
def test_public_module_has_its_names_and_is_imported_on_demand(module: str, names: list[str]) -> None:
    """A process that does not use a page or the test tools does not load them."""
    script = (
        "import importlib, sys, oauth_ratelimit\n"
        f"assert 'oauth_ratelimit.{module}' not in sys.modules\n"
        f"print(*importlib.import_module('oauth_ratelimit.{module}').__all__)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert names == done.stdout.split(), done.stderr


def test_package_declares_its_types() -> None:
    (folder,) = oauth_ratelimit.__path__
    assert (Path(folder) / "py.typed").exists()
