"""Keys and limits of failed authentications."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.core.failed_auth import (
    KIND_OF,
    MAX_STORED_LENGTH,
    FailureKind,
    FailureLimits,
    failure_policies,
    folded,
    is_within,
    networks_of,
    password_keys,
    secret_keys,
)
from oauth_ratelimit.core.key import MAX_NAME_LENGTH, Key, storable_name
from oauth_ratelimit.core.mode import Mode
from tests.support.limiters import a_policy


@pytest.mark.parametrize(
    ("remote_addr", "expected"),
    [
        *((text, ("192.0.2.7",)) for text in ("192.0.2.7", "192.0.2.7:4711", "192.0.2.7:", "::ffff:192.0.2.7")),
        *((text, ("192.0.2.7",)) for text in ("[::ffff:192.0.2.7]:4711", "64:ff9b::192.0.2.7", "[64:ff9b::c000:207]")),
        ("2001:db8:1:2:3:4:5:6", ("2001:db8:1:2::/64", "2001:db8:1::/48")),
        ("[2001:db8:1:2::]:443", ("2001:db8:1:2::/64", "2001:db8:1::/48")),
        ("[2001:db8::1]", ("2001:db8::/64", "2001:db8::/48")),
        ("[fe80::1%eth0]:80", ("fe80::/64", "fe80::/48")),
        *(
            (text, ())
            for text in ("", None, "unix:", "192.0.2", "192.0.2.7:x", "[192.0.2.7", "1.2.3.4:5:6", "x" * 10_000)
        ),
    ],
)
def test_networks_that_failures_are_counted_by(remote_addr: str | None, expected: tuple[str, ...]) -> None:
    """An IPv4 address is counted alone, an IPv6 address with its /64 and /48, anything else not at all."""
    assert expected == networks_of(remote_addr)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        *((text, True) for text in ("10.1.2.3", "::ffff:10.1.2.3", "192.0.2.7:4711", "2001:db8::9")),
        ("[2001:db9::5]:80", True),
        *((text, False) for text in ("192.0.2.8", "2001:db9::6", "2001:dba::1", "")),
    ],
)
def test_address_is_within_networks_of_its_version(address: str, expected: bool) -> None:
    """A network may be a single address, of IPv6, too."""
    assert expected is is_within(address, ("10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32", "2001:db9::5/128"))
    assert not is_within(address, ())


@given(st.text(max_size=40) | st.text(min_size=MAX_STORED_LENGTH - 2, max_size=MAX_STORED_LENGTH + 2))
def test_claimed_name_is_stored_as_it_is_with_any_address(name: str) -> None:
    """The key of a failure is never cut again, and the name can be read from it."""
    claim = folded(name)
    stored = f"2001:db8:1111:2222::/64 {claim}"

    assert len(stored) <= MAX_NAME_LENGTH
    assert stored == storable_name(stored)
    assert claim == stored.partition(" ")[2]


@pytest.mark.parametrize(
    ("spelling", "plain"),
    [
        *((text, "alice") for text in ("Alice", " alice ", "ALICE", "\uff21lice", "alice\u3000", "\u24d0lice")),
        # An accent, composed or not; a circle.
        *((text, "alice") for text in ("\xe1lice", "a\u0301lice", "AL\u0130CE", "alice\u20dd")),
        *((text, "alice") for text in ("al\u200bice", "\ufeffalice", "al\xadice", "alice\0", "al\u202eice")),
        *((text, "alice") for text in ("\u200b alice \u200b", "al\u0131ce", "a\u0142ice", "A\u0141ICE")),
        *((text, "alice") for text in ("al\u3164\u115f\u1160\uffa0ice", "al\u2800ice", "al\u2065ice")),
        *((text, "alice") for text in ("alice" + " " * 10_000, "\u200b" * 200 + "alice", "\U0001d41alice")),
        ("s\xf8n", "son"),
        ("\xc6gir", "aegir"),
        ("\u0153uvre", "oeuvre"),
        ("\u0110or\u0111e", "dorde"),
        ("ro\xdfe", "rose"),  # a single letter to older collations
        ("\u0363lice", "alice"),
        ("\U0001f150li\u1dd7e", "alice"),
        ("a\ua77aa", "ada"),
        ("user\u0664\u096a\u1369", "user441"),
        ("user\U00011067\u2776\u2469\u3007", "user11100"),
        ("\u03b1\u1fb3", "\u03b1\u03b1"),  # an iota below is an accent
        ("\u0411\u2deb\u0491", "\u0431\u043f\u0433"),
        ("\u30b5\u304f\u3089\u30a1\uff67", "\u3055\u304f\u3089\u3042\u3042"),
        ("\u05de\u05dd", "\u05de\u05de"),
        ("a\ufe70b\u0640c\u1cf2d\u06dee\ua8eaf", "abcdef"),
    ],
    ids=ascii,
)
def test_spellings_that_a_server_may_take_for_one_user_become_one(spelling: str, plain: str) -> None:
    """Among them letters with strokes, those that are two, digits of other scripts, kana, and what has no weight."""
    assert plain == folded(spelling)


@pytest.mark.parametrize(
    "name", ["\ud55c\uae00", "\u738b\u5c0f\u660e", "\u0438\u0432\u0430\u043d", "\u03bd\u03af\u03ba\u03bf\u03c2"]
)
def test_names_in_other_scripts_stay_apart(name: str) -> None:
    assert len(name) == len(folded(name))


def test_symbols_and_characters_beyond_the_first_plane_are_left_out() -> None:
    assert {"a"} == {folded("a\U0001f600"), folded("a\U0001f601"), folded("a\u2605"), folded("a\U00010400")}


def test_cost_of_a_long_name_is_bounded() -> None:
    """Names that nobody has are one, however they are spelt."""
    assert len(folded("\ufdfa" * 256)) <= MAX_STORED_LENGTH
    assert {"~"} == {
        folded("\ufdfa" * 255),
        folded("\ufdfa" * 5_000_000),
        folded("al" + "\u200b" * 2_000 + "ice"),
        folded("\u200b" * 2_000),
    }
    assert folded("x" * 500 + "a") != folded("x" * 500 + "b")


def test_guess_counts_by_client_name_and_network() -> None:
    wide = ("2001:db8::/64", "2001:db8::/48")
    any_client = [Key("*", wide[0], "failures:client_address"), Key("*", wide[1], "failures:client_address/48")]
    own = [Key("a", wide[0], "failures:client"), Key("a", wide[1], "failures:client/48")]
    assert (own + any_client, any_client) == (secret_keys("a", wide), secret_keys(None, wide))

    address, total = Key("*", "192.0.2.7", "failures:address"), Key("a", "*", "failures:passed_on_total")
    public = Key("a", "192.0.2.7 x y", "failures:user")
    passed_on = Key("a", "2001:db8::/64 x", "failures:passed_on")
    assert [public, address] == password_keys("a", "x y", ("192.0.2.7",), is_public=True)
    assert [address] == password_keys("a", None, ("192.0.2.7",), is_public=True)
    assert [passed_on, total] == password_keys("a", "x", wide, is_public=False)
    assert {FailureKind.CLIENT} == {KIND_OF[key.scope or ""] for key in own}


def test_each_kind_of_failure_has_limits_and_a_scope_of_its_own() -> None:
    """A wide network has ten times the limit. The dry run that an operator sets at run time applies, too."""
    limits = FailureLimits(user=(a_policy(1, name="u"),), address=(a_policy(2, name="a"),))
    enforced = failure_policies(limits, Mode.ENFORCE, ceiling=None)
    spared = failure_policies(limits, Mode.ENFORCE, ceiling=Mode.DRY_RUN)

    found = {kind: enforced.matching("app", endpoint=kind.scope) for kind in FailureKind}
    assert {kind: kind.scope for kind in FailureKind} == {kind: policies.scope for kind, policies in found.items()}
    assert [limits.user, (), (), (), (), limits.address] == [policies.limits.user for policies in found.values()]
    assert Mode.ENFORCE is found[FailureKind.USER].mode
    assert Mode.DRY_RUN is spared.matching("app", endpoint=FailureKind.USER.scope).mode
    (wide,) = enforced.matching("app", endpoint=FailureKind.USER.wide_scope).limits.user
    assert ("u-48", 10) == (wide.name, wide.limit)
