"""Problems in words: no secrets, and what replaces removed keys."""

from typing import Any

import pytest

from oauth_ratelimit.config import load_config
from oauth_ratelimit.config.errors import REMOVED_KEYS
from oauth_ratelimit.errors import ConfigError


def problems_of(values: dict[str, Any]) -> list[str]:
    """Return the problems of a configuration."""
    with pytest.raises(ConfigError) as caught:
        load_config(values)
    return list(caught.value.problems)


@pytest.mark.parametrize(
    "values",
    [
        {"store": {"uri": "mongo://app:hunter2@db"}},
        {"store": {"uri": "mongodb:app:hunter2@db"}},
        {"store": {"url": "mongodb://app:hunter2@db"}},
        {"store": "mongodb://app:hunter2@db"},
        {"store": ["mongodb://app:hunter2@db"]},
        {"store": {"uri": ["mongodb://app:hunter2@db"]}},
        {"store": {"password": "hunter2"}},
        {"store": {"collection": "mongodb://app:hunter2@db"}},
        {"mode": "mongodb+srv://app:hunter2@db"},
        {"uri": "mongodb://app:hunter2@db"},
        {"store": {"uri": "mongodb://app:hunter2@db"}, "mode": 1},
        {"digest": {"url": "https://app:hunter2@example.com", "secret": "hunter2"}},
    ],
    ids=repr,
)
def test_password_in_the_wrong_place_is_not_shown(values: dict[str, Any]) -> None:
    """Neither the message nor the traceback holds a password."""
    with pytest.raises(ConfigError) as caught:
        load_config(values)
    error = caught.value
    assert "hunter2" not in f"{error} {error!r}"
    assert (error.__cause__, error.__context__) == (None, None)


def test_removed_key_is_reported_with_all_other_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path may be nested, and an unknown key beside a removed one is still an unknown key."""
    monkeypatch.setitem(REMOVED_KEYS, "former", "write nothing")
    monkeypatch.setitem(REMOVED_KEYS, "store.former", "set store.uri")
    found = problems_of({"mode": "on", "former": {"a": 1}, "store": {"former": "mongodb://u:secret@h", "formr": 1}})
    assert ["mode", "store.former", "store.formr", "former"] == [line.split(":")[0] for line in found]
    assert ["store.former: was removed; set store.uri", "former: was removed; write nothing"] == found[1::2]
    assert found[2].startswith("store.formr: unknown key, allowed: uri")


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {"gc_interval": "1d"},
            "gc_interval: was removed; Python decides when to collect; "
            "see gc.freeze() in docs/operations for processes with very many keys",
        ),
        (
            {"digest": {"url": "https://example.com/hook", "secret": "never shown, never shown"}},
            "digest: was removed; use `flask oauth-ratelimit report --format json` from cron",
        ),
        (
            {"privacy": {"read_plain": True}},
            "privacy.read_plain: was removed; counts start anew when user_names changes; "
            "`erase` always looks for plain names, too",
        ),
    ],
)
def test_removed_key_is_refused_with_its_replacement(values: dict[str, object], line: str) -> None:
    """The whole line is what an operator reads."""
    assert [line] == problems_of(values)
