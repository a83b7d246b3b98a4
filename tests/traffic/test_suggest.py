"""Limits proposed from recorded traffic."""

from itertools import chain
from typing import Any

import pytest

from oauth_ratelimit import load_config
from oauth_ratelimit.core.statistics import DAY_S, HOUR_S, OTHER_CLIENTS, ClientMinute, Source, Tally
from oauth_ratelimit.traffic.formats import SECOND_US, Row
from oauth_ratelimit.traffic.minutes import minutes_of_rows
from oauth_ratelimit.traffic.suggest import MAX_OWN, Suggestion, Traffic, configuration, proposal_data, suggest
from testbed.synthetic import Size, judge, requests

BEGIN_S = 1_793_577_600  # midnight
OWN, LOGIN = Source("client", "client_credentials"), Source("user", "password")


def rows(client: str, user: str | None = None, *, each_day: list[int]) -> list[Row]:
    return [
        Row(int((BEGIN_S + day * DAY_S + 36_000 + number * HOUR_S / count) * SECOND_US), client, user)
        for day, count in enumerate(each_day)
        for number in range(count)
    ]


def traffic_of(*requests: list[Row], token_lifetime_s: float | None = None, **each_day: list[int]) -> Traffic:
    """Requests, and clients by their number of requests on each day."""
    traffic = Traffic(token_lifetime_s=token_lifetime_s)
    clients = (rows(client, each_day=counts) for client, counts in each_day.items())
    for minute in minutes_of_rows(sorted(chain(*requests, *clients))):
        traffic.add_minute(minute)
    return traffic


def limits_of(traffic: Traffic) -> dict[tuple[str, str | None], Suggestion]:
    return {(one.kind.value, one.client_id): one for one in suggest(traffic).suggestions}


@pytest.mark.slow
def test_small_synthetic_service_is_left_alone_and_its_wasteful_clients_are_stopped() -> None:
    size = Size(days=4, machines=8, apps=2, users_per_app=20, culprit_apps=1, culprit_rates=(300, 900))
    verdict = judge(requests(size, seed=7), fit_days=2)
    assert verdict.well_behaved > 500
    assert verdict.harmed_percent <= 0.1
    assert verdict.stopped_percent >= 95


def test_margin_grows_with_the_variance_over_days() -> None:
    varying = traffic_of(varying=[2, 20, 2, 20, 2, 20, 2], odd=[1, 1, 1, 1, 1, 1, 40])
    limits = limits_of(traffic_of(steady=[20] * 7))["client", None], limits_of(varying)["client", None]
    assert 20 + 3 * 20**0.5 <= limits[0].safe_limit <= 20 + 3 * 20**0.5 + 1
    assert 40 < limits[1].safe_limit <= 60


def test_limit_is_twice_what_is_safe_if_nobody_is_wasteful() -> None:
    found = limits_of(traffic_of(calm=[5] * 7))["client", None]
    assert (12, 24, 0, None) == (found.safe_limit, found.limit, found.denied, found.stopped_ratio)


def test_proposal_has_its_evidence() -> None:
    proposal = suggest(traffic_of(calm=[5] * 7, wasteful=[1000] * 7))
    found: Any = proposal_data(proposal)["suggestions"]
    shown = {name: found[0][name] for name in ("kind", "safest", "well_behaved_denied", "spared")}
    assert ["client", {"client_id": "calm", "username": None}, 0, None] == list(shown.values())
    assert 0.95 <= found[0]["stopped_ratio"] <= 1
    limits: Any = configuration(proposal)["limits"]
    assert [{"limit": found[0]["limit"], "window": "1h"}] == limits["client"]


@pytest.mark.parametrize(("would_reuse", "proposed"), [(8, {"on_limit": "reuse"}), (2, {})])
def test_reuse_is_proposed_where_it_would_have_spared_most_denials(would_reuse: int, proposed: dict[str, str]) -> None:
    traffic = Traffic()
    for minute in range(12 * 60):
        tally = Tally(10, would_deny=10, would_reuse=would_reuse)
        traffic.add_minute(ClientMinute("wasteful", BEGIN_S + 60 * minute, {OWN: tally}))
    proposal = suggest(traffic)
    (limit,) = proposal.suggestions
    limits: Any = configuration(proposal)["limits"]

    assert round(limit.denied * would_reuse / 10) == limit.spared
    assert [{"limit": limit.limit, "window": "1h", **proposed}] == limits["client"]
    assert load_config({"limits": limits})


def test_large_well_behaved_client_gets_a_limit_of_its_own() -> None:
    calm = {f"calm-{number}": [2] * 7 for number in range(20)}
    traffic = traffic_of(**calm, large=[25] * 7, wasteful=[600] * 7)
    found = limits_of(traffic)
    assert found["client", None].limit < 25 < found["client", "large"].limit
    assert ("client", "wasteful") not in found
    assert load_config({"mode": "enforce", **configuration(suggest(traffic))})


def test_wasteful_client_gets_what_it_needs_if_the_limit_for_all_stops_too_little() -> None:
    large = {f"large-{number}": [29] * 7 for number in range(MAX_OWN + 5)}
    found = limits_of(traffic_of(**large, wasteful=[200] * 7))
    assert 29 < found["client", None].limit < 100
    assert 10 == found["client", "wasteful"].limit


def test_need_is_the_limit_if_everybody_is_wasteful() -> None:
    traffic, short = traffic_of(wasteful=[200] * 7), traffic_of(wasteful=[600] * 7, token_lifetime_s=600.0)
    assert {("client", None): 10} == {key: one.limit for key, one in limits_of(traffic).items()}
    assert {("client", None): 60} == {key: one.limit for key, one in limits_of(short).items()}


def test_users_of_a_wasteful_client_are_no_example_for_others() -> None:
    calm = [rows("shop", f"user-{number}", each_day=[2] * 7) for number in range(5)]
    wasteful = [rows("wasteful", f"user-{number}", each_day=[300] * 7) for number in range(5)]
    found = limits_of(traffic_of(*calm, *wasteful, rows("wasteful", "rare", each_day=[19])))
    assert max(one.limit for (kind, _), one in found.items() if kind == "user") < 19
    assert 0 == found["user", None].well_behaved_denied
    assert {"shop"} == {one.safest.client_id for (kind, _), one in found.items() if kind == "user" and one.safest}


def test_single_client_with_one_wasteful_user_gets_a_limit() -> None:
    others = [rows("shop", f"user-{number}", each_day=[2] * 7) for number in range(80)]
    found = limits_of(traffic_of(*others, rows("shop", "rude", each_day=[60] * 7)))
    assert {("user", None): 7, ("user", "shop"): 3} == {key: one.limit for key, one in found.items()}, "three devices"


def test_trusted_clients_and_those_counted_together_are_left_out() -> None:
    traffic = Traffic()
    traffic.add_minute(ClientMinute("mobile", BEGIN_S, {OWN: Tally(trusted=50)}))
    traffic.add_minute(ClientMinute(OTHER_CLIENTS, BEGIN_S, {OWN: Tally(30)}))
    assert ([], 30, 0) == (suggest(traffic).suggestions, traffic.left_out_count, traffic.day_count)


def test_number_of_clients_and_users_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oauth_ratelimit.traffic.suggest.MAX_SUBJECTS", 2)
    users = [rows("b", user, each_day=[3]) for user in ("ann", "bob", "eve")]
    traffic = traffic_of(*users, a=[5], c=[7])

    assert 3 + 7 == traffic.left_out_count
    assert 5 + 9 == traffic.request_count


def test_total_ceiling_is_above_every_client_without_waste() -> None:
    users = [rows("shop", user, each_day=[3] * 7) for user in ("ann", "bob")]
    found = limits_of(traffic_of(*users, wasteful=[500] * 7))["client_total", None]
    assert 12 <= found.limit < 100
    assert 0 == found.well_behaved_denied


@pytest.mark.parametrize(
    ("each_day", "basis", "is_enough"),
    [
        ([45], "45 requests within 59 min", False),
        ([5000], "5,000 requests within 1 h", False),
        ([500, 499], "999 requests on 2 days", False),
        ([500, 500], "1,000 requests on 2 days", True),
        ([], "0 requests within 0 s", False),
    ],
)
def test_proposal_says_how_much_traffic_it_is_made_from(each_day: list[int], basis: str, is_enough: bool) -> None:
    proposal = suggest(traffic_of(app=each_day))

    assert (basis, is_enough) == (proposal.basis, proposal.is_enough)


def test_limit_of_users_through_all_clients_is_proposed_where_they_have_several() -> None:
    """As with dynamic registration. Most of what anybody needs is doubled."""
    one, other = rows("a", "alice", each_day=[1] * 7), rows("b", "alice", each_day=[1] * 7)
    found = limits_of(traffic_of(one, other, rows("c", "bob", each_day=[1] * 7)))
    assert found["user_total", None].safest == ("*", "alice")
    assert (21, 0) == (found["user_total", None].offered, found["user_total", None].denied)
    assert ("user_total", None) not in limits_of(traffic_of(one))
