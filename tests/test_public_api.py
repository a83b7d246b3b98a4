"""The public surface of the package."""

import inspect
import subprocess
import sys

import pytest

import oauth_ratelimit
from oauth_ratelimit import Limiter, OAuthRateLimit

PROMISED = {
    "OAuthRateLimit": ("init_app",),
    "RateLimitMixin": (),
    "RateLimited": ("get_headers", "status_code"),
    "Limiter": ("check", "peek", "sync", "close", "reconfigure", "preload"),
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


@pytest.mark.parametrize("name", PROMISED)
def test_public_name_has_the_promised_members(name: str) -> None:
    assert set(PROMISED) == set(oauth_ratelimit.__all__)
    thing = getattr(oauth_ratelimit, name)
    annotated = {member for kind in getattr(thing, "__mro__", ()) for member in getattr(kind, "__annotations__", ())}
    assert [] == [member for member in PROMISED[name] if not hasattr(thing, member) and member not in annotated]


def test_limiter_and_extension_have_the_promised_arguments() -> None:
    check, peek = (inspect.signature(method) for method in (Limiter.check, Limiter.peek))
    assert check == peek
    assert ["self", "client_id", "username", "endpoint", "cost", "grant_type"] == list(check.parameters)
    defaults = {name: parameter.default for name, parameter in check.parameters.items()}
    assert (None, "token", 1, None) == tuple(defaults[name] for name in ("username", "endpoint", "cost", "grant_type"))
    assert ["settings", "store", "clock"] == list(inspect.signature(Limiter).parameters)[:3]
    assert ["app", "server"] == list(inspect.signature(OAuthRateLimit).parameters)[:2]


def test_worker_loads_nothing_that_only_operators_need() -> None:
    """Each module makes every start of a worker longer."""
    script = (
        "import os, sys\n"
        "from tests.support.apps import protected_app, token_status\n"
        "os.environ['AUTHLIB_INSECURE_TRANSPORT'] = '1'\n"
        "store = {'uri': 'mongodb://127.0.0.1:1', 'timeout': '10ms'}\n"
        "with protected_app(OAUTH_RATELIMIT_CONFIG={'store': store}) as app:\n"
        "    assert 200 == token_status(app)\n"
        "    print(*sys.modules, flush=True)\n"
        "    os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    every = done.stdout.splitlines()[-1].split()
    loaded = {name.removeprefix("oauth_ratelimit.") for name in every if name.startswith("oauth_ratelimit.")}

    assert "store.mongo.counters" in loaded
    assert not {"cli", "admin", "blueprints", "testing", "traffic"} & {name.split(".")[0] for name in loaded}
    assert "yaml" not in every, "only a file needs it"
    assert "pymongo" in every
    assert {"format"} == {name[11:] for name in loaded if name.startswith("operations.")}
