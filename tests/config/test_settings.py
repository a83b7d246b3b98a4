"""Keys of user names from outside the file."""

from pathlib import Path
from typing import Any

import pytest

from oauth_ratelimit import ConfigError, load_config
from oauth_ratelimit.config import describe_changes
from oauth_ratelimit.core.key import PseudonymKey

SECRETS = {"KEY_1": "1" * 32, "KEY_2": "2" * 32, "SHORT": "s" * 31, "LONG": "l" * 5000}
ONE, TWO = (PseudonymKey.of(SECRETS[name].encode()) for name in ("KEY_1", "KEY_2"))


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)


def keys(*names: str) -> list[dict[str, str]]:
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
    settings = load_config({"privacy": privacy}).privacy
    assert (key, former) == (settings.key, settings.former_keys)


def test_key_in_a_file_is_read_without_the_white_space_around_it(tmp_path: Path) -> None:
    """Editors end files with a line feed; any other byte belongs to the key."""
    path = tmp_path / "key"
    settings = {"privacy": {"user_names": "hashed", "keys": [{"file": str(path)}]}}
    path.write_text(f"\n{SECRETS['KEY_1']} \n")
    assert ONE == load_config(settings).privacy.key

    path.write_bytes(bytes(range(128, 192)))
    assert PseudonymKey.of(bytes(range(128, 192))) == load_config(settings).privacy.key


@pytest.mark.parametrize(
    ("privacy", "line"),
    [
        ({"user_names": "hashed"}, "privacy: hashed needs at least one key under keys"),
        ({"keys": [{}]}, "privacy.keys[0]: needs either env or file"),
        ({"keys": [{"env": "KEY_1", "file": "/x"}]}, "privacy.keys[0]: needs either env or file"),
        ({"keys": keys("KEY_1", "NOT_SET")}, "privacy.keys[1]: the environment variable NOT_SET is not set"),
        (
            {"keys": keys("SHORT")},
            "privacy.keys[0]: the key has 31 bytes, allowed: at least 32, as openssl rand -hex 32 makes",
        ),
        ({"keys": keys("LONG")}, "privacy.keys[0]: the key is longer than 4096 bytes"),
        ({"keys": [{"file": "/dev/urandom"}]}, "privacy.keys[0]: the key is longer than 4096 bytes"),
        ({"keys": keys("KEY_1", "KEY_2", "KEY_1")}, "privacy: two of the keys are the same"),
        ({"keys": [{"file": "/no/such"}]}, "privacy.keys[0]: the file cannot be read: No such file or directory"),
        ({"keys": [{"file": "/"}]}, "privacy.keys[0]: the file cannot be read: Is a directory"),
        ({"keys": [{"file": "/nul\0"}]}, "privacy.keys[0]: the file cannot be read: ValueError"),
        ({"keys": [{"secret": "x" * 40}]}, "privacy.keys[0].secret: unknown key, allowed: env, file"),
        ({"keys": [{"x" * 40: None}]}, "privacy.keys[0].…: unknown key, allowed: env, file"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_key_that_cannot_be_used_is_refused_without_showing_it(privacy: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"privacy": privacy})
    assert (line,) == caught.value.problems


def test_change_of_keys_is_described_by_their_labels() -> None:
    hashed = load_config({"privacy": {"user_names": "hashed", "keys": keys("KEY_1")}})
    changes = ["privacy.user_names: plain -> hashed", f"privacy.keys[{ONE.label}]: added"]
    assert changes == describe_changes(load_config({}), hashed)
