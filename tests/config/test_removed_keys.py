"""Keys of former versions: each is refused with the sentence that says what replaces it."""

import pytest

from oauth_ratelimit.config import load_config
from oauth_ratelimit.config.errors import REMOVED_KEYS
from oauth_ratelimit.errors import ConfigError


def problems_of(values: dict[str, object]) -> list[str]:
    """Return what load_config reports for these values."""
    with pytest.raises(ConfigError) as caught:
        load_config(values)
    return list(caught.value.problems)


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
def test_removed_key_names_what_replaces_it(values: dict[str, object], line: str) -> None:
    """The whole line is what an operator reads."""
    assert [line] == problems_of(values)
