"""Problems in words: no secrets, and what replaces removed keys."""

from pathlib import Path
from typing import Any

import pytest

from oauth_ratelimit.config import load_config
from oauth_ratelimit.config.document import parse_yaml
from oauth_ratelimit.config.errors import REMOVED_KEYS, Problems
from oauth_ratelimit.config.settings import FILE
from oauth_ratelimit.config.types import Section
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


EXAMPLES = [
    pytest.param(section, key.name, id=f"{section.title}: {key.name}")
    for section in {section.title: section for section in FILE.sections}.values()
    for key in section.keys.values()
]


@pytest.mark.parametrize(("section", "name"), EXAMPLES)
def test_example_in_an_error_can_be_pasted(section: Section, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong value of each key is answered with a right one."""
    monkeypatch.setenv("RATELIMIT_NAMES_KEY", "k" * 40)
    kind, problems = section.keys[name].kind, Problems()
    example = parse_yaml(f"{name}: {section.keys[name].example()}".encode(), source="example")[name]
    if name != "file":  # there is none
        kind.parse(example, name, problems)

    assert [] == list(problems.error(source="example").problems)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "limits:\n  client: 10/minute\n",
            'limits.client: got "10/minute", allowed: a list; for example client: ["10/minute"] (line 2)',
        ),
        ("limts: {}\n", "max_keys; did you mean limits? (line 1)"),
        ("mode: off\nclients:\n  app: {plan: gld}\nplans: {gold: {}}\n", "allowed: gold; did you mean gold?"),
        (
            "trusted_clients:\n  - app\n  - 12345\n",
            "trusted_clients[1]: got 12345, allowed: text of 1 to 1024 characters, with * ? [] as in a shell; "
            'in quotes it is text: "12345"; for example trusted_clients: [our-own-app] (line 3)',
        ),
        (
            "clients: {12345: {}}\n",
            'clients.12345: got 12345, allowed: text of 1 to 1024 characters; in quotes it is text: "12345"; for',
        ),
        (
            "canary: {percent: 5, salt: true}\n",
            'canary.salt: got true, allowed: text; in quotes it is text: "true"; for',
        ),
        ("limits: {12: []}\n", "limits.12: unknown key, allowed: client, user, client_total (line 1)"),
        ("limits:\n  user:\n    - limit: 5\n", "limits.user[0].window: missing; for example window: 60s (line 3)"),
        (
            "store:\n  uri: ${MONGO_URI}\n",
            "store.uri: got ${MONGO_URI}, but nothing is interpolated in this file; leave the key out and set "
            'app.config["OAUTH_RATELIMIT_MONGO_URI"] = os.environ["MONGO_URI"] (line 2)',
        ),
        ("store: {uri: 'mongodb://app:${PASSWORD}@db/x'}\n", 'os.environ["PASSWORD"]'),
        ("mode: $MODE\n", 'app.config["OAUTH_RATELIMIT_MODE"] = os.environ["MODE"] (line 1)'),
        ("denial: {error_uri: '${DOCS}'}\n", "denial.error_uri: got ${DOCS}, but nothing is interpolated in this file"),
        (
            "grants: {refresh-token: {}}\n",
            "grants: refresh-token can never match; did you mean refresh_token? (line 1)",
        ),
        ("grants: {Client_Credential: {}}\n", "did you mean client_credentials?"),
        ("grants: {'urn:ietf:params:oauth:grant-type:device-code': {}}\n", "grant-type:device_code?"),
        (
            "endpoints: {introspection: {}}\nclients: {a: {endpoints: {introspect: {}}}}\n",
            "did you mean introspection?",
        ),
        ("mode:dry-run\n", "for example mode: dry-run, with a space after the colon"),
    ],
)
def test_error_leads_to_the_right_text(tmp_path: Path, text: str, expected: str) -> None:
    """With file name, line and what to write."""
    path = tmp_path / "ratelimit.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)

    assert str(path) == caught.value.source
    assert str(caught.value).startswith(f"{path}: ")
    assert expected in caught.value.problems[0]


def test_custom_grant_type_is_accepted() -> None:
    """Only the application knows whether it exists."""
    grants = ("urn:example:own", "own-token")
    assert {*grants} == {*load_config({"grants": {name: {} for name in grants}}).policies.grants}


def test_missing_file_at_a_relative_path_names_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="No such file or directory; the path is relative to") as caught:
        load_config("conf/ratelimit.yaml")

    assert str(tmp_path) in str(caught.value)
