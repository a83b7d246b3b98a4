"""
What stands for the name of a user.
"""

import hmac
import pickle
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.core.key import MAX_NAME_LENGTH
from oauth_ratelimit.core.names import PLAIN, NameKey, Names, StoredName
from tests.privacy.names import ALICE, NEW, OLD, stored


def test_hash_of_a_name() -> None:
    """
    A hash is the label of its key and half an HMAC-SHA-256, the same in every process of every release.
    """
    digest = hmac.digest(b"the old key, which is long enough for it", ALICE.encode(), "sha256")
    assert "49b6a2-36b484e196405ca886297ba80910c905" == stored(ALICE, OLD)
    assert digest[:16].hex() == stored(ALICE, OLD).partition("-")[2]


@given(st.text(max_size=40), st.text(max_size=40))
def test_two_names(one: str, other: str) -> None:
    """
    Names have the same hash only if they are the same, and the hash tells nothing of the name.
    """
    names = Names([OLD])
    assert (one == other) == (names(one) == names(other))
    assert re.fullmatch("[0-9a-f]{6}-[0-9a-f]{32}", names(one) or "")


@pytest.mark.parametrize("name", ["", "\ud800", "a\0b", "x" * (MAX_NAME_LENGTH + 1), "ß" * 1_000_000, "\u202e"])
def test_any_name(name: str) -> None:
    """
    Whatever a user is called has a hash, which depends on the whole of it.
    """
    names = Names([OLD])
    assert names(name) == names(name)
    assert names(name) != names(f"{name}x")


def test_keys_differ() -> None:
    """
    Another key gives other hashes and another label.
    """
    assert OLD.label != NEW.label
    assert stored(ALICE, OLD).partition("-")[2] != stored(ALICE, NEW).partition("-")[2]


def test_short_key() -> None:
    """
    A key that could be guessed is refused, and not repeated.
    """
    with pytest.raises(ValueError, match="a key needs 32 bytes, got 31") as caught:
        NameKey.of(b"k" * 31)
    assert "kkk" not in str(caught.value)


def test_key_is_not_printed() -> None:
    """
    Nothing that prints or keeps a key gives away its secret.
    """
    secret = string.ascii_letters
    key = NameKey.of(secret.encode())
    assert secret not in f"{key!r} {key} {vars(Names([key]))}"
    with pytest.raises(TypeError):
        pickle.dumps(key)


def test_name_that_looks_like_a_hash() -> None:
    """
    The hash of a user is hashed like any other name, and no user stays no user.
    """
    names = Names([OLD, NEW])
    alice = names(ALICE)
    assert alice != names(alice)
    assert None is names(None)


def test_other_names() -> None:
    """
    Beside the name that is written stand those that are read as well.
    """
    alice = Names([NEW, OLD, PLAIN])(ALICE)
    assert isinstance(alice, StoredName)
    assert (stored(ALICE, NEW), (stored(ALICE, OLD), ALICE)) == (alice, alice.others)


def test_all_names_of_a_user() -> None:
    """
    An operator may name a user, or a hash as logs show it; a hash under a key that is not listed is just a name.
    """
    names = Names([NEW, OLD])
    assert (stored(ALICE, NEW), stored(ALICE, OLD)) == names.typed(ALICE).all
    assert (stored(ALICE, OLD),) == names.typed(stored(ALICE, OLD)).all
    assert stored(ALICE, OLD) not in Names([NEW]).typed(stored(ALICE, OLD)).all
    assert (ALICE,) == Names([PLAIN]).typed(ALICE).all
