"""Query for the recorded traffic of one client."""

import re
import time
from datetime import datetime, timedelta, timezone

import pytest

from oauth_ratelimit.core.statistics import ClientMinute, Source, Tally
from tests.admin.conftest import Page, minute, record


def test_client_day_has_users_grants_bursts_and_a_letter(page: Page, mongo_uri: str) -> None:
    refreshed = ClientMinute("app", minute(5).minute_s, {Source("user", "refresh_token"): Tally(allowed=5)})
    record(mongo_uri, [minute(3, allowed=12, denied=3, retries=2), refreshed])
    data = page.query("client-day", id="app")

    assert (20, 3, 2, 4) == (data["offered"], data["over"], data["retries"], data["burst"])
    assert ({"password": 15, "refresh_token": 5}, [("alice", 17)]) == (
        {row["grant"]: row["offered"] for row in data["grants"]},
        [(user["username"], user["offered"]) for user in data["users"]],
    )
    assert (0.25, 1.0) == (data["refresh_share"], round(data["user_count"]))
    assert 20.0 == pytest.approx(data["per_user_hour"], abs=0.2)
    assert "over its limits" == data["verdict"]
    assert any("3" in text for text in data["faults"])
    assert "Keep each user's access token" in data["letter"]


@pytest.mark.parametrize(("offset", "name"), [("0", "UTC"), ("330", "UTC+05:30"), ("-600", "UTC-10:00")])
def test_letter_has_times_in_the_chosen_zone(page: Page, mongo_uri: str, offset: str, name: str) -> None:
    record(mongo_uri, [minute(3, allowed=12, denied=3)])
    period = re.search(r" to (\S+ \S+) (\S+), your", page.query("client-day", id="app", utc_offset=offset)["letter"])

    assert period and name == period[2]
    until = datetime.fromisoformat(period[1]).replace(tzinfo=timezone(timedelta(minutes=int(offset))))
    assert abs(until.timestamp() - time.time()) < 60


@pytest.mark.parametrize("offset", ["", "x", "900", "9" * 50, "1.5"])
def test_invalid_zone_is_rejected(page: Page, offset: str) -> None:
    response = page.get("api/client-day", id="app", utc_offset=offset)

    assert (400, True) == (response.status_code, "minutes ahead of UTC" in response.json["problem"]["text"])


def test_client_day_without_statistics_is_empty(page: Page) -> None:
    assert 0 == page.query("client-day", id="nobody")["offered"]
