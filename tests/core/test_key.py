"""Names that can be kept and sent."""

import pytest
from bson import encode
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.core.key import MAX_NAME_LENGTH, Key, storable_name, visible_name

ANY_NAME = st.text(st.characters(), max_size=50)  # lone surrogates included
STORED_BYTES = 4 * MAX_NAME_LENGTH


@pytest.mark.parametrize(
    "name",
    (
        "",
        "app",
        "None",
        "a\0b",
        "$set",
        "a.b",
        "\u202egnp",
        "a\r\nb",
        "é",
        "e\u0301",
        "\U0001f511",
        "x" * MAX_NAME_LENGTH,
    ),
    ids=range(12),
)
def test_name_that_stays(name: str) -> None:
    """Short valid Unicode stays as it is, whatever it looks like; nothing is normalised."""
    assert name == storable_name(name)


@pytest.mark.parametrize(
    "name", ("x" * (MAX_NAME_LENGTH + 1), "\ud800", "a\udfffb", "\ud83d\udd11", "x" * 5_000_000), ids=range(5)
)
def test_name_that_cannot_be_kept(name: str) -> None:
    """A long name or one that is no valid Unicode is cut, and closed with a digest of the whole."""
    stored = storable_name(name)
    assert len(stored) <= 64 + 1 + 64
    head, digest = stored.rsplit("~", 1)
    assert 64 == len(digest)
    assert head.replace("?", "") == name[: len(head)].encode("utf-8", "ignore").decode()
    assert stored == storable_name(stored)


@given(one=ANY_NAME, other=ANY_NAME)
def test_two_names_stay_two(one: str, other: str) -> None:
    """Different names are never kept as one."""
    assert (one == other) == (storable_name(one) == storable_name(other))


@given(tails=st.tuples(ANY_NAME, ANY_NAME))
def test_two_long_names_stay_two(tails: tuple[str, str]) -> None:
    """Not even if they differ only far from the beginning."""
    one, other = ("x" * 1000 + tail for tail in tails)
    assert (one == other) == (storable_name(one) == storable_name(other))


@given(name=ANY_NAME, repeats=st.integers(1, 100))
def test_any_name_can_be_sent(name: str, repeats: int) -> None:
    """What is kept is valid UTF-8 of bounded size, so MongoDB takes it."""
    stored = storable_name(name * repeats)
    assert len(stored.encode()) <= STORED_BYTES
    encode({"clientId": stored})


def test_keys() -> None:
    """Where one name ends and the next begins matters, and so does the difference between no user and "None"."""
    keys = {Key("a:b", "c"), Key("a", "b:c"), Key("a", None), Key("a", "None"), Key("a", ""), Key("a", None, "c")}
    assert 6 == len(keys)
    assert Key("a", None) == Key("a", None, None)


@given(name=ANY_NAME)
def test_any_name_can_be_shown(name: str) -> None:
    """What is shown is one line of visible signs, for logs and terminals."""
    assert visible_name(name).isprintable()


def test_names_with_hidden_signs() -> None:
    """Hidden signs are shown as escapes, and an escape that was there before is not taken for one."""
    assert "plain é\U0001f511" == visible_name("plain é\U0001f511")
    assert "a\\x1b[31m\\r\\n\\u202e" == visible_name("a\x1b[31m\r\n\u202e")
    assert "a\\\\n\\n" == visible_name("a\\n\n")
