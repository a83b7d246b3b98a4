"""User pseudonyms."""

import hmac
import pickle
import string

import pytest

from oauth_ratelimit.core.key import MAX_NAME_LENGTH, PseudonymKey, Pseudonyms
from tests.support.pseudonyms import ALICE, NEW, OLD


def test_hash_is_the_same_in_every_process_and_release() -> None:
    """A hash is the label of its key and half an HMAC-SHA-256."""
    digest = hmac.digest(b"the old key, which is long enough for it", ALICE.encode(), "sha256")
    assert "49b6a2-36b484e196405ca886297ba80910c905" == OLD(ALICE) == Pseudonyms(OLD, [NEW])(ALICE)
    assert digest[:16].hex() == OLD(ALICE).partition("-")[2]
    assert OLD(ALICE) in Pseudonyms(NEW, [OLD]).all_of(OLD(ALICE))  # typed from a log line, it finds its records


@pytest.mark.parametrize("name", ["", "\ud800", "a\0b", "x" * (MAX_NAME_LENGTH + 1), "ß" * 1_000_000, "\u202e"])
def test_any_name_has_a_hash_of_the_whole_of_it(name: str) -> None:
    names = Pseudonyms(OLD)
    assert names(name) == names(name)
    assert names(name) != names(f"{name}x")


def test_short_key_is_rejected_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="a key needs 32 bytes, got 31") as caught:
        PseudonymKey.of(b"k" * 31)
    assert "kkk" not in str(caught.value)


def test_key_is_never_printed_or_pickled() -> None:
    secret = string.ascii_letters
    key = PseudonymKey.of(secret.encode())
    assert secret not in f"{key!r} {key} {vars(Pseudonyms(key))}"
    with pytest.raises(TypeError):
        pickle.dumps(key)


@pytest.mark.parametrize(
    ("names", "user", "pseudonym"),
    [
        (Pseudonyms(NEW, [OLD]), ALICE, NEW(ALICE)),
        (Pseudonyms(NEW, [OLD]), NEW(ALICE), NEW(ALICE)),
        (Pseudonyms(NEW, [OLD]), OLD(ALICE), NEW(OLD(ALICE))),
        (Pseudonyms(NEW), NEW(ALICE).upper(), NEW(NEW(ALICE).upper())),
        (Pseudonyms(None, [OLD]), ALICE, ALICE),
        (Pseudonyms(None, [OLD]), OLD(ALICE), OLD(ALICE)),
    ],
    ids=["name", "hash", "hash under a former key", "nearly a hash", "plain", "plain, looks like a hash"],
)
def test_operator_may_type_a_name_or_a_hash_under_the_current_key(names: Pseudonyms, user: str, pseudonym: str) -> None:
    assert pseudonym == names.typed(user)


@pytest.mark.parametrize(
    ("names", "pseudonyms"),
    [
        (Pseudonyms(NEW, [OLD]), (NEW(ALICE), OLD(ALICE), ALICE)),
        (Pseudonyms(None, [OLD]), (OLD(ALICE), ALICE)),
        (Pseudonyms(None), (ALICE,)),
    ],
    ids=["hashed", "plain again", "plain"],
)
def test_all_pseudonyms_are_those_under_every_key_and_the_plain_name(
    names: Pseudonyms, pseudonyms: tuple[str, ...]
) -> None:
    assert pseudonyms == names.all_of(ALICE)
