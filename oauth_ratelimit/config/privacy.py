"""The section about the names of users, and where their keys are read from."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from oauth_ratelimit.config.problems import expects, refused
from oauth_ratelimit.config.section import Section
from oauth_ratelimit.core.pseudonyms import MIN_SECRET_BYTES, PseudonymKey

MAX_SECRET_BYTES = 4096

# In capitals, so that a key that is put here by mistake is hardly ever taken for a name and repeated.
VariableName = Annotated[
    str,
    Field(max_length=200, pattern=r"^[A-Z_][A-Z0-9_]*$"),
    expects("the name of an environment variable, in capitals, digits and underscores"),
]

KeyPath = Annotated[str, Field(max_length=4096, pattern=r"^/"), expects("the absolute path of a file")]


class NameKeyModel(Section):
    """Where a key for names is: in the environment or in a file, never in the configuration itself."""

    env: VariableName | None = Field(default=None, description="The environment variable that holds the key.")
    file: KeyPath | None = Field(
        default=None, description="The file that holds the key. White space around it is left out."
    )

    @model_validator(mode="after")
    def _names_a_key(self) -> "NameKeyModel":
        self.open()
        return self

    def open(self) -> PseudonymKey:
        """Return the key.

        Raises:
            PydanticCustomError: There is none that can be used. Says where it should be, and nothing of what is there.
        """
        if (self.env is None) == (self.file is None):
            raise refused("needs either env or file")
        if self.env is not None:
            text = os.environ.get(self.env)
            if text is None:
                raise refused(f"the environment variable {self.env} is not set")
            secret = text.encode("utf-8", "surrogateescape")
        else:
            secret = self._content()
        size = len(secret.strip())
        if size > MAX_SECRET_BYTES:
            raise refused(f"the key is longer than {MAX_SECRET_BYTES} bytes")
        if size < MIN_SECRET_BYTES:
            raise refused(
                f"the key has {size} bytes, allowed: at least {MIN_SECRET_BYTES}, as openssl rand -hex 32 makes"
            )
        return PseudonymKey.of(secret.strip())

    def _content(self) -> bytes:
        try:
            with Path(str(self.file)).open("rb") as file:
                return file.read(2 * MAX_SECRET_BYTES)
        except OSError as exc:
            reason = exc.strerror
        raise refused(f"the file cannot be read: {reason}")


class PrivacyModel(Section):
    """User pseudonyms in MongoDB, logs, metrics, hooks, pages and reports."""

    user_names: Annotated[Literal["plain", "hashed"], expects("plain or hashed")] = Field(
        default="plain",
        description="plain stores and shows usernames as they are, hashed a keyed hash (HMAC-SHA-256) under the first "
        "key. A change starts new counts.",
    )
    keys: list[NameKeyModel] = Field(
        default_factory=list,
        description="Keys of the hashes, the newest first. The first one hashes usernames, and a new one starts new "
        "counts. All others, or all with plain, are former keys: only erase uses them (docs/privacy.md).",
    )

    @model_validator(mode="after")
    def _has_the_keys_it_needs(self) -> "PrivacyModel":
        if self.user_names == "hashed" and not self.keys:
            raise refused("hashed needs at least one key under keys")
        if len({key.label for key in self.name_keys()}) < len(self.keys):
            raise refused("two of the keys are the same")
        return self

    def name_keys(self) -> tuple[PseudonymKey, ...]:
        """Return the keys, the newest first."""
        return tuple(key.open() for key in self.keys)
