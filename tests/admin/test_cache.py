"""Cached reads."""

from collections.abc import Callable
from typing import Any

import pytest

from oauth_ratelimit import Limiter
from oauth_ratelimit.store.mongo.inspect import CounterDocuments
from tests.admin.conftest import LIMIT, Page
from tests.support.limiters import send_hits
from tests.support.mongod import free_port


@pytest.mark.usefixtures("quick_reconnect")
def test_unreachable_mongodb_is_tried_by_one_request_at_a_time(
    open_page: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_page(store={"uri": f"mongodb://127.0.0.1:{free_port()}/test", "timeout": "20ms"})
    assert "database" == page.query("top")["problem"]["kind"]
    reads: list[Any] = []
    monkeypatch.setattr("oauth_ratelimit.flask_authlib.app_limiter.AppLimiter.context", reads.append)

    assert ["database"] * 3 == [page.query(name)["problem"]["kind"] for name in ("status", "top", "overrides")]
    assert [] == reads


def test_answers_are_shared_until_a_change(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    first = page.query("status")["now_s"]
    assert first == page.query("status")["now_s"]
    page.send("apply", LIMIT)
    assert (True, 1) == (first < (data := page.query("status"))["now_s"], data["override_count"])


def test_known_client_ids_are_read_once(page: Page, limiter: Limiter, monkeypatch: pytest.MonkeyPatch) -> None:
    send_hits(limiter, 1, "partner")
    read = []
    find = CounterDocuments.latest

    def count(self: CounterDocuments, *args: Any) -> Any:
        read.append(args)
        return find(self, *args)

    monkeypatch.setattr(CounterDocuments, "latest", count)
    verdicts = [page.query("client", id=name)["verdict"] for name in ("partnr", "partnr", "partne")]

    assert [["partner"]] * 3 == [verdict["suggestions"] for verdict in verdicts]
    assert 1 == len(read)
