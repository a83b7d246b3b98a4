"""Problems in words: no secrets, and what replaces removed keys."""

from pathlib import Path

import pytest

from oauth_ratelimit.config import load_config
from oauth_ratelimit.config.document import parse_yaml
from oauth_ratelimit.config.errors import REMOVED_KEYS, Problems
from oauth_ratelimit.config.settings import FILE
from oauth_ratelimit.config.types import Section
from oauth_ratelimit.core.mode import Mode
from oauth_ratelimit.errors import ConfigError

REMOVED = {
    "gc_interval": "1d",
    "digest": {"url": "https://example.com/hook", "secret": "hunter2"},
    "sync": {"near_limit": "reserve", "deadline": "20ms"},
    "privacy": {"read_plain": True},
}


def test_removed_key_is_a_warning_that_names_its_successor() -> None:
    settings = load_config({"mode": "enforce", **REMOVED})
    assert Mode.ENFORCE is settings.policies.mode
    assert set(REMOVED_KEYS) == {line.split(":")[0] for line in settings.warnings}
    assert "hunter2" not in str(settings)
    with pytest.raises(ConfigError) as caught:
        load_config({"mode": "on", **REMOVED})
    assert ["mode"] == [line.split(":")[0] for line in caught.value.problems]


def test_warning_names_the_line_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "limits.yaml"
    path.write_text("mode: dry-run\nsync:\n  deadline: 20ms\n")
    warning = "sync.deadline: was removed and is ignored; no request waits for MongoDB (line 3)"
    assert (warning,) == load_config(path).warnings


EXAMPLES = [
    pytest.param(section, key.name, id=f"{section.title}: {key.name}")
    for section in {section.title: section for section in FILE.sections}.values()
    for key in section.keys.values()
]


@pytest.mark.parametrize(("section", "name"), EXAMPLES)
def test_example_in_an_error_can_be_pasted(section: Section, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATELIMIT_NAMES_KEY", "k" * 40)
    kind, problems = section.keys[name].kind, Problems({"plans": {"gold": {}}, "endpoints": {"revocation": {}}})
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
        ("canary: {salt: true}\n", 'canary.salt: got true, allowed: text; in quotes it is text: "true"; for'),
        ("limits: {12: []}\n", "limits.12: unknown key, allowed: client, user, client_total, user_total (line 1)"),
        ("limits:\n  user:\n    - limit: 5\n", "limits.user[0].window: missing; for example window: 60s (line 3)"),
        (
            "store:\n  uri: ${MONGO_URI}\n",
            "store.uri: got ${MONGO_URI}, but nothing is interpolated in this file; leave the key out and set "
            'app.config["OAUTH_RATELIMIT_MONGO_URI"] = os.environ["MONGO_URI"] (line 2)',
        ),
        ("store: {uri: 'mongodb://app:${PASSWORD}@db/x'}\n", 'os.environ["PASSWORD"]'),
        ("mode: $MODE\n", 'app.config["OAUTH_RATELIMIT_MODE"] = os.environ["MODE"] (line 1)'),
        ("denial: {error_uri: '${DOCS}'}\n", "denial.error_uri: got ${DOCS}, but nothing is interpolated in this file"),
        ("grants: {Client-Credential: {mode: on}}\n", "Client-Credential: can never match; did you mean client_cred"),
        ("grants: {'urn:ietf:params:oauth:grant-type:device-code': {}}\n", "grant-type:device_code?"),
        ("endpoints: {introspection: {}}\nplans: {a: {endpoints: {introspect: {}}}}\n", "mean introspection? (line 2)"),
        ("mode:dry-run\n", "for example mode: dry-run, with a space after the colon"),
    ],
)
def test_error_leads_to_the_right_text(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "ratelimit.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)

    assert isinstance(caught.value, ValueError)
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
