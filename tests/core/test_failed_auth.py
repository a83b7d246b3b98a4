"""Keys and limits of failed authentications."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oauth_ratelimit.core.failed_auth import (
    MAX_CLAIM_LENGTH,
    AuthAttempt,
    FailureKey,
    FailureKind,
    FailureLimits,
    address_of,
    claimed_name,
    failure_policies,
    folded,
    is_within,
)
from oauth_ratelimit.core.key import MAX_NAME_LENGTH, storable_name
from oauth_ratelimit.core.mode import Mode
from tests.support.limiters import a_policy


@pytest.mark.parametrize(
    ("remote_addr", "expected"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", None),
        (None, None),
        ("unix:", None),
        ("192.0.2.7:4711", None),
        ("192.0.2", None),
        ("x" * 10_000, None),
    ],
)
def test_address_that_failures_are_counted_by(remote_addr: str | None, expected: str | None) -> None:
    """An IPv4 address is counted alone, an IPv6 address with its /64, anything else not at all."""
    assert expected == address_of(remote_addr)


@pytest.mark.parametrize(
    ("address", "expected"),
    [("10.1.2.3", True), ("192.0.2.7", True), ("192.0.2.8", False), ("2001:db8::/64", True), ("2001:db9::/64", False)],
)
def test_address_is_within_networks_of_its_version(address: str, expected: bool) -> None:
    """An IPv6 address here is a /64."""
    assert expected is is_within(address, ("10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32"))
    assert not is_within(address, ())


@pytest.mark.parametrize(
    "spelling",
    [
        *("Alice", " alice ", "ALICE", "\uff21lice", "alice\u3000", "\u24d0lice"),
        *("\xe1lice", "a\u0301lice", "AL\u0130CE", "alice\u20dd"),  # an accent, composed or not; a circle
        *("al\u200bice", "\ufeffalice", "al\xadice", "alice\0", "al\u202eice", "\u200b alice \u200b"),
    ],
    ids=ascii,
)
def test_spellings_that_a_server_may_take_for_one_user_become_one(spelling: str) -> None:
    """Case, width, accents and invisible characters do not matter."""
    assert "alice" == folded(spelling)


@given(st.text(max_size=40) | st.text(min_size=MAX_CLAIM_LENGTH - 2, max_size=MAX_CLAIM_LENGTH + 2))
def test_claimed_name_is_stored_as_it_is_with_any_address(name: str) -> None:
    """The key of a failure is never cut again, and the name can be read from it."""
    claim = folded(name)
    stored = f"2001:db8:1111:2222::/64 {claim}"

    assert len(stored) <= MAX_NAME_LENGTH
    assert stored == storable_name(stored)
    assert claim == claimed_name(stored)


def test_long_name_is_cut_before_it_expands() -> None:
    """Two long names stay different."""
    assert len(folded("\ufdfa" * 5_000_000)) <= MAX_CLAIM_LENGTH
    assert len(folded("\ufdfa" * MAX_CLAIM_LENGTH)) <= MAX_CLAIM_LENGTH
    assert folded("x" * 5_000_000 + "a") != folded("x" * 5_000_000 + "b")


def test_attempt_is_counted_by_each_client_with_each_name_and_by_its_address() -> None:
    """An address alone has no name."""
    attempt = AuthAttempt(("a", "b"), ("x y",), "192.0.2.7")

    assert [
        FailureKey(FailureKind.CLIENT, "a", "192.0.2.7"),
        FailureKey(FailureKind.USER, "a", "192.0.2.7 x y"),
        FailureKey(FailureKind.PASSED_ON, "a", "192.0.2.7 x y"),
        FailureKey(FailureKind.CLIENT, "b", "192.0.2.7"),
        FailureKey(FailureKind.USER, "b", "192.0.2.7 x y"),
        FailureKey(FailureKind.PASSED_ON, "b", "192.0.2.7 x y"),
        FailureKey(FailureKind.ADDRESS, "*", "192.0.2.7"),
    ] == list(attempt.targets())
    assert [None, "x y", "x y", None, "x y", "x y", None] == [claimed_name(target.name) for target in attempt.targets()]


def test_each_kind_of_failure_has_limits_and_a_scope_of_its_own() -> None:
    """The dry run that an operator sets at run time applies to failures, too."""
    limits = FailureLimits(user=(a_policy(1, name="u"),), address=(a_policy(2, name="a"),))
    enforced = failure_policies(limits, Mode.ENFORCE, ceiling=None)
    spared = failure_policies(limits, Mode.ENFORCE, ceiling=Mode.DRY_RUN)

    found = {kind: enforced.matching("app", endpoint=kind.scope) for kind in FailureKind}
    assert {kind: kind.scope for kind in FailureKind} == {kind: policies.scope for kind, policies in found.items()}
    assert [limits.user, (), (), limits.address] == [policies.limits.user for policies in found.values()]
    assert Mode.ENFORCE is found[FailureKind.USER].mode
    assert Mode.DRY_RUN is spared.matching("app", endpoint=FailureKind.USER.scope).mode
