"""Limits proposed from recorded traffic."""

import pytest

from benchmarks.suggest import judge
from benchmarks.synthetic import Size, requests
from oauth_ratelimit import load_config
from oauth_ratelimit.core.policy import LimitKind
from oauth_ratelimit.core.statistics import OTHER_CLIENTS, ClientMinute, Source, Tally, UserLoad
from oauth_ratelimit.operations.profiles import DAY_S, HOUR_S, Traffic
from oauth_ratelimit.operations.suggest import (
    MAX_OWN,
    Suggestion,
    configuration,
    suggest,
    suggestion_data,
)

BEGIN_S = 1_793_577_600  # midnight
OWN, LOGIN = Source("client", "client_credentials"), Source("user", "password")


def add(traffic: Traffic, client: str, user: str | None = None, *, each_day: list[int]) -> None:
    """Add requests of one client in one hour of each day."""
    for day, count in enumerate(each_day):
        for number in range(count):
            traffic.add_request(BEGIN_S + day * DAY_S + 36_000 + number * HOUR_S / count, client, user)


def limits_of(traffic: Traffic, **options: float) -> dict[tuple[str, str | None], Suggestion]:
    """Return the suggestions by kind and client."""
    return {(one.kind.value, one.client_id): one for one in suggest(traffic, **options).suggestions}


def test_small_synthetic_service_is_left_alone_and_its_wasteful_clients_are_stopped() -> None:
    size = Size(days=4, machines=8, apps=2, users_per_app=20, culprit_apps=1, culprit_rates=(300, 900))
    verdict = judge(requests(size, seed=7), fit_days=2)
    assert verdict.well_behaved > 500
    assert verdict.harmed_percent <= 0.1
    assert verdict.stopped_percent >= 95


def test_margin_grows_with_the_variance_over_days() -> None:
    steady, varying = Traffic(), Traffic()
    add(steady, "steady", each_day=[20] * 7)
    add(varying, "varying", each_day=[2, 20, 2, 20, 2, 20, 2])
    add(varying, "odd", each_day=[1, 1, 1, 1, 1, 1, 40])
    limits = limits_of(steady)["client", None], limits_of(varying)["client", None]
    assert 20 + 3 * 20**0.5 <= limits[0].safe_limit <= 20 + 3 * 20**0.5 + 1
    assert 40 < limits[1].safe_limit <= 60


def test_limit_is_twice_what_is_safe_if_nobody_is_wasteful() -> None:
    traffic = Traffic()
    add(traffic, "calm", each_day=[5] * 7)
    found = limits_of(traffic)["client", None]
    assert (12, 24, 0, None) == (found.safe_limit, found.limit, found.denied, found.stopped_ratio)


def test_evidence_names_the_next_wasteful_client() -> None:
    traffic = Traffic()
    add(traffic, "calm", each_day=[5] * 7)
    add(traffic, "wasteful", each_day=[1000] * 7)
    found = limits_of(traffic)["client", None]
    assert found.next_above is not None
    assert found.safest is not None
    assert ("wasteful", 1000, "calm") == (found.next_above.client_id, found.next_peak, found.safest.client_id)
    assert (0, 1) == (found.well_behaved_denied, found.denied_count)
    assert 0.95 <= (found.stopped_ratio or 0) <= 1


def test_large_well_behaved_client_gets_a_limit_of_its_own() -> None:
    traffic = Traffic()
    for number in range(20):
        add(traffic, f"calm-{number}", each_day=[2] * 7)
    add(traffic, "large", each_day=[25] * 7)
    add(traffic, "wasteful", each_day=[600] * 7)
    found = limits_of(traffic)
    assert found["client", None].limit < 25 < found["client", "large"].limit
    assert ("client", "wasteful") not in found
    assert load_config({"mode": "enforce", **configuration(suggest(traffic))})


def test_wasteful_client_gets_what_it_needs_if_the_limit_for_all_stops_too_little() -> None:
    traffic = Traffic()
    for number in range(MAX_OWN + 5):
        add(traffic, f"large-{number}", each_day=[29] * 7)
    add(traffic, "wasteful", each_day=[200] * 7)
    found = limits_of(traffic)
    assert 29 < found["client", None].limit < 100
    assert 10 == found["client", "wasteful"].limit


def test_need_is_the_limit_if_everybody_is_wasteful() -> None:
    traffic = Traffic()
    add(traffic, "wasteful", each_day=[200] * 7)
    assert {("client", None): 10} == {key: one.limit for key, one in limits_of(traffic).items()}
    add(traffic, "wasteful", each_day=[400] * 7)
    assert {("client", None): 60} == {key: one.limit for key, one in limits_of(traffic, token_lifetime_s=600.0).items()}


def test_users_of_a_wasteful_client_are_no_example_for_others() -> None:
    traffic = Traffic()
    for number in range(5):
        add(traffic, "shop", f"user-{number}", each_day=[2] * 7)
        add(traffic, "wasteful", f"user-{number}", each_day=[300] * 7)
    add(traffic, "wasteful", "rare", each_day=[19])
    assert 6 == len(suggest(traffic).wasteful[LimitKind.USER])
    found = limits_of(traffic)
    assert max(one.limit for (kind, _), one in found.items() if kind == "user") < 19
    assert ("shop", 0) == (
        getattr(found["user", None].safest, "client_id", None),
        found["user", None].well_behaved_denied,
    )


@pytest.mark.parametrize(("lifetime_s", "is_wasteful"), [(60, False), (43_200, True)])
def test_lifetime_of_the_tokens_issued_tells_what_is_wasteful(lifetime_s: int, is_wasteful: bool) -> None:
    traffic = Traffic()
    for minute in range(12 * 60):
        tallies, users = {LOGIN: Tally(1)}, (UserLoad("ann", 1),)
        traffic.add_minute(
            ClientMinute("shop", BEGIN_S + 60 * minute, tallies, users=users, lifetimes={lifetime_s: 1, 7: 0})
        )
    assert is_wasteful is bool(suggest(traffic).wasteful[LimitKind.USER])
    assert not suggest(traffic, token_lifetime_s=60.0).wasteful[LimitKind.USER]


def test_trusted_clients_and_those_counted_together_are_left_out() -> None:
    traffic = Traffic()
    traffic.add_minute(ClientMinute("mobile", BEGIN_S, {OWN: Tally(trusted=50)}))
    traffic.add_minute(ClientMinute(OTHER_CLIENTS, BEGIN_S, {OWN: Tally(30)}))
    assert ([], 30, 0) == (suggest(traffic).suggestions, traffic.left_out_count, traffic.day_count)


def test_total_ceiling_is_above_every_client_without_waste() -> None:
    traffic = Traffic()
    add(traffic, "shop", "ann", each_day=[3] * 7)
    add(traffic, "shop", "bob", each_day=[3] * 7)
    add(traffic, "wasteful", each_day=[500] * 7)
    found = limits_of(traffic)["client_total", None]
    assert 12 <= found.limit < 100
    assert 0 == found.well_behaved_denied


@pytest.mark.parametrize(
    ("each_day", "basis", "is_enough"),
    [
        ([45], "45 requests within 1 h", False),
        ([5000], "5,000 requests within 1 h", False),
        ([500, 499], "999 requests on 2 days", False),
        ([500, 500], "1,000 requests on 2 days", True),
        ([], "0 requests within 0 s", False),
    ],
)
def test_proposal_says_how_much_traffic_it_is_made_from(each_day: list[int], basis: str, is_enough: bool) -> None:
    traffic = Traffic()
    add(traffic, "app", each_day=each_day)
    proposal = suggest(traffic)

    assert (basis, is_enough) == (proposal.basis, proposal.is_enough)


def test_record_of_a_suggestion_holds_names_and_numbers() -> None:
    traffic = Traffic(600)
    add(traffic, "calm", each_day=[5] * 7)
    record = suggestion_data(suggest(traffic).suggestions[0])
    assert ("client", {"client_id": "calm", "username": None}) == (record["kind"], record["safest"])
    assert [{"limit": record["limit"], "window": "10m"}] == configuration(suggest(traffic))["limits"]["client"]  # type: ignore[index]
