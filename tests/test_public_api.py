"""What users may rely on."""

import inspect
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


def test_names() -> None:
    """The package offers what is promised and nothing else."""
    assert sorted(PROMISED) == sorted(oauth_ratelimit.__all__)
    extra = {
        name
        for name, value in vars(oauth_ratelimit).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name not in PROMISED
    }
    assert set() == extra


@pytest.mark.parametrize("name", PROMISED)
def test_members(name: str) -> None:
    """Each name has the members that are promised, and says what it is for, as they do."""
    thing = getattr(oauth_ratelimit, name)
    assert inspect.getdoc(thing)
    annotated = {member for kind in getattr(thing, "__mro__", ()) for member in getattr(kind, "__annotations__", ())}
    for member in PROMISED[name]:
        assert hasattr(thing, member) or member in annotated
        value = getattr(thing, member, None)
        assert not inspect.isroutine(value) or inspect.getdoc(value)


@pytest.mark.parametrize("name", [name for name in PROMISED if inspect.isclass(getattr(oauth_ratelimit, name))])
def test_every_public_member_is_documented(name: str) -> None:
    """What has no underscore in front is explained."""
    kind = getattr(oauth_ratelimit, name)
    for base in kind.__mro__:
        if not base.__module__.startswith("oauth_ratelimit"):
            continue
        for member, value in vars(base).items():
            if not member.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
                assert inspect.getdoc(getattr(base, member)), f"{base.__name__}.{member}"


def test_signatures() -> None:
    """Arguments have the names and defaults of the contract."""
    check, peek = (inspect.signature(method) for method in (Limiter.check, Limiter.peek))
    assert check == peek
    assert ["self", "client_id", "username", "endpoint", "cost", "grant_type"] == list(check.parameters)
    defaults = {name: parameter.default for name, parameter in check.parameters.items()}
    assert (None, "token", 1, None) == tuple(defaults[name] for name in ("username", "endpoint", "cost", "grant_type"))
    assert ["settings", "store", "clock"] == list(inspect.signature(Limiter).parameters)
    assert ["app", "server"] == list(inspect.signature(OAuthRateLimit).parameters)[:2]


def test_attributes_of_a_decision_are_documented() -> None:
    """Each stands in the class's docstring or has one of its own."""
    text = inspect.getdoc(Decision) or ""
    for member in PROMISED["Decision"]:
        assert f"{member}:" in text or inspect.getdoc(getattr(Decision, member))


def test_typed() -> None:
    """Type checkers may look inside."""
    (folder,) = oauth_ratelimit.__path__
    assert (Path(folder) / "py.typed").exists()
