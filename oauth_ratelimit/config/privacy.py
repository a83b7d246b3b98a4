"""User names in the configuration: plain, or hashed under keys from the environment or from files."""

import os
from dataclasses import dataclass
from pathlib import Path

from oauth_ratelimit.config.types import ConfigKey, choice, list_of, or_null, section, setting, text
from oauth_ratelimit.core.key import MIN_SECRET_BYTES, PseudonymKey, Pseudonyms

MAX_SECRET_BYTES = 4096


def read_pseudonym_key(*, env: str | None = None, file: str | None = None) -> PseudonymKey:
    """Return the key that an environment variable or a file holds.

    Raises ``ValueError`` if it cannot be used, with the place where it should be, and nothing of what is there.
    """
    if file is None and env is not None:
        content = os.environ.get(env)
        if content is None:
            raise ValueError(f"the environment variable {env} is not set")
        secret = content.encode("utf-8", "surrogateescape").strip()
    elif env is None and file is not None:
        secret = _start_of(file).strip()
    else:
        raise ValueError("needs either env or file")
    if len(secret) > MAX_SECRET_BYTES:
        raise ValueError(f"the key is longer than {MAX_SECRET_BYTES} bytes")
    if len(secret) < MIN_SECRET_BYTES:
        raise ValueError(
            f"the key has {len(secret)} bytes, allowed: at least {MIN_SECRET_BYTES}, as openssl rand -hex 32 makes"
        )
    return PseudonymKey.of(secret)


def _start_of(path: str) -> bytes:
    """Return as much of a file as a key and the white space around it may take."""
    try:
        with Path(path).open("rb") as file:
            return file.read(2 * MAX_SECRET_BYTES)
    except (OSError, ValueError) as exc:
        raise ValueError(f"the file cannot be read: {getattr(exc, 'strerror', None) or type(exc).__name__}") from None


SECRET_KEY = section(
    "A secret key",
    "The key of a hash, in the environment or in a file, never in the configuration itself.",
    (
        ConfigKey(
            "env",
            or_null(
                # In capitals, so that a key that is put here by mistake is hardly ever taken for a name and repeated.
                text(
                    "the name of an environment variable, in capitals, digits and underscores",
                    pattern=r"^[A-Z_][A-Z0-9_]*$",
                    longest=200,
                )
            ),
        ),
        ConfigKey("file", or_null(text("the absolute path of a file", pattern="^/", longest=4096))),
    ),
    build=read_pseudonym_key,
)


@dataclass(frozen=True, slots=True)
class PrivacySettings:
    """User pseudonyms in MongoDB, logs, metrics, hooks, pages and reports."""

    user_names: str = setting(choice(("plain", "hashed")), default="plain")
    keys: tuple[PseudonymKey, ...] = setting(list_of(SECRET_KEY), default=[])

    def __post_init__(self) -> None:
        if self.user_names == "hashed" and not self.keys:
            raise ValueError("hashed needs at least one key under keys")
        if len({each.label for each in self.keys}) < len(self.keys):
            raise ValueError("two of the keys are the same")

    @property
    def key(self) -> PseudonymKey | None:
        """The key that hashes usernames; None if they stay plain."""
        return self.keys[0] if self.user_names == "hashed" else None

    @property
    def former_keys(self) -> tuple[PseudonymKey, ...]:
        """The keys that only ``erase`` uses."""
        return self.keys[1:] if self.user_names == "hashed" else self.keys

    def names(self) -> Pseudonyms:
        return Pseudonyms(self.key, self.former_keys)
