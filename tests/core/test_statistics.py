"""Statistics of a client."""

from oauth_ratelimit.core.statistics import ClientMinute, ClientSum, Peak, Source, Tally, UserLoad, register_of

PASSWORD, REFRESH, BATCH = Source("user", "password"), Source("user", "refresh_token"), Source("client", "none")


def test_requests_over_a_limit_are_issued_in_a_dry_run() -> None:
    tally = Tally(allowed=10, denied=3, would_deny=2, trusted=1, retries=2)

    assert (16, 13, 5) == (tally.offered, tally.issued, tally.over)
    assert Tally(20, 6, 4, 2, 4) == tally + tally


def test_sum_adds_requests_and_keeps_the_highest_peaks() -> None:
    """A user of several minutes is one user."""
    shop = ClientSum("shop")
    users, registers = (UserLoad("alice", 3), UserLoad("bob", 2)), dict(map(register_of, ("alice", "bob")))
    tallies, peaks = {PASSWORD: Tally(5), BATCH: Tally(1)}, {"user": Peak(0.5, 5.0, 10, 60)}
    shop.add(ClientMinute("shop", 60, tallies, peaks, users, registers, [0, 4, 1]))
    users, registers = (UserLoad("alice", 10, denied=2),), dict([register_of("alice")])
    tallies = {PASSWORD: Tally(1), REFRESH: Tally(8, denied=2)}
    peaks = {"user": Peak(0.9, 4.5, 5, 60), "client": Peak(0.1, 1.0, 10, 60)}
    shop.add(ClientMinute("shop", 120, tallies, peaks, users, registers, [2, 2]))

    assert {PASSWORD: Tally(6), BATCH: Tally(1), REFRESH: Tally(8, denied=2)} == shop.tallies
    assert (Tally(15, denied=2), Tally(14, denied=2)) == (shop.tally(), shop.tally("user"))
    assert {"user": Peak(0.9, 4.5, 5, 60), "client": Peak(0.1, 1.0, 10, 60)} == shop.peaks
    assert UserLoad("alice", 13, denied=2) == shop.users["alice"]
    assert (4, (11, 120)) == (shop.burst, shop.busiest)
    assert (0, 2) == (ClientSum("other").user_count, shop.user_count)


def test_number_of_users_is_not_known_before_their_first_minute_is_over() -> None:
    assert None is ClientMinute("shop", 60, {PASSWORD: Tally(5)}).user_count
    assert 0 == ClientMinute("shop", 60, {BATCH: Tally(5)}).user_count
