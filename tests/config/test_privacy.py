"""The section about the names of users."""

from pathlib import Path
from typing import Any

import pytest

from oauth_ratelimit import ConfigError, load_config
from oauth_ratelimit.config import describe_changes
from oauth_ratelimit.core.pseudonyms import PseudonymKey

SECRETS = {"KEY_1": "1" * 32, "KEY_2": "2" * 32, "SHORT": "s" * 31, "LONG": "l" * 5000}
ONE, TWO = (PseudonymKey.of(SECRETS[name].encode()) for name in ("KEY_1", "KEY_2"))


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)


def keys(*names: str) -> list[dict[str, str]]:
    """Return entries for keys in the environment."""
    return [{"env": name} for name in names]


@pytest.mark.parametrize(
    ("privacy", "key", "former"),
    [
        ({}, None, ()),
        ({"user_names": "plain"}, None, ()),
        ({"user_names": "plain", "keys": keys("KEY_1")}, None, (ONE,)),
        ({"user_names": "hashed", "keys": keys("KEY_1")}, ONE, ()),
        ({"user_names": "hashed", "keys": keys("KEY_2", "KEY_1")}, TWO, (ONE,)),
    ],
    ids=["default", "plain", "plain again", "hashed", "new key"],
)
def test_first_key_hashes_and_the_others_are_former_keys(
    privacy: dict[str, Any], key: PseudonymKey | None, former: tuple[PseudonymKey, ...]
) -> None:
    """Where names are plain all keys are former keys."""
    settings = load_config({"privacy": privacy}).privacy
    assert (key, former) == (settings.key, settings.former_keys)


def test_key_in_a_file(tmp_path: Path) -> None:
    """
    White space around the key in a file does not belong to it, as editors end files with a line feed; the rest does.
    """
    path = tmp_path / "key"
    path.write_text(f"\n{SECRETS['KEY_1']} \n")
    settings = {"privacy": {"user_names": "hashed", "keys": [{"file": str(path)}]}}
    assert ONE == load_config(settings).privacy.key

    path.write_bytes(bytes(range(128, 192)))
    assert PseudonymKey.of(bytes(range(128, 192))) == load_config(settings).privacy.key


@pytest.mark.parametrize(
    ("privacy", "line"),
    [
        ({"user_names": "hashed"}, "privacy: hashed needs at least one key under keys"),
        ({"user_names": "secret"}, 'privacy.user_names: got "secret", allowed: plain or hashed'),
        ({"keys": [{}]}, "privacy.keys[0]: needs either env or file"),
        ({"keys": [{"env": "KEY_1", "file": "/x"}]}, "privacy.keys[0]: needs either env or file"),
        ({"keys": keys("KEY_1", "NOT_SET")}, "privacy.keys[1]: the environment variable NOT_SET is not set"),
        ({"keys": keys("SHORT")}, "privacy.keys[0]: the key has 31 bytes, allowed: at least 32"),
        ({"keys": keys("LONG")}, "privacy.keys[0]: the key is longer than 4096 bytes"),
        ({"keys": keys("KEY_1", "KEY_2", "KEY_1")}, "privacy: two of the keys are the same"),
        (
            {"keys": keys("key_1")},
            "privacy.keys[0].env: got another text, allowed: the name of an environment variable",
        ),
        ({"keys": [{"file": "key"}]}, "privacy.keys[0].file: got another text, allowed: the absolute path of a file"),
        ({"keys": [{"file": "/no/such"}]}, "privacy.keys[0]: the file cannot be read: No such file or directory"),
        ({"keys": [{"file": "/"}]}, "privacy.keys[0]: the file cannot be read: Is a directory"),
        ({"keys": ["x" * 40]}, "privacy.keys[0]: got another text, allowed: a mapping"),
        ({"keys": [{"secret": "x" * 40}]}, "privacy.keys[0].secret: unknown key, allowed: env, file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_refused(privacy: dict[str, Any], line: str) -> None:
    """The error names the place and what is allowed there, and nothing that may be a key."""
    with pytest.raises(ConfigError) as caught:
        load_config({"privacy": privacy})

    assert [True] == [problem.startswith(line) for problem in caught.value.problems], caught.value.problems
    assert "xxx" not in str(caught.value)


def test_file_without_an_end() -> None:
    """No more of a file is read than a key may have."""
    with pytest.raises(ConfigError, match="the key is longer than 4096 bytes"):
        load_config({"privacy": {"keys": [{"file": "/dev/urandom"}]}})


def test_changes_in_words() -> None:
    """A change of keys is told by their labels."""
    plain, one, two = (
        load_config({"privacy": privacy})
        for privacy in (
            {},
            {"user_names": "hashed", "keys": keys("KEY_1")},
            {"user_names": "hashed", "keys": keys("KEY_1", "KEY_2")},
        )
    )
    assert [f"privacy.keys[{TWO.label}]: added"] == describe_changes(one, two)
    assert ["privacy.user_names: plain -> hashed", f"privacy.keys[{ONE.label}]: added"] == describe_changes(plain, one)
    assert one != two
