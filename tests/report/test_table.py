"""The report as records and as CSV."""

import csv
import io

from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.report import letter_to
from oauth_ratelimit.report.table import csv_text, record_of
from tests.report.reporting import HOSTILE_IDS, PERIOD, worst_findings


def test_no_cell_is_a_formula() -> None:
    """Control characters are escaped, and nothing is left out."""
    findings = worst_findings(*HOSTILE_IDS)
    records = [record_of(each, rank, period=PERIOD) for rank, each in enumerate(findings, 1)]
    rows = list(csv.DictReader(io.StringIO(csv_text(records))))

    assert len(HOSTILE_IDS) == len(rows)
    for row, finding in zip(rows, findings, strict=True):
        lines = map(visible_name, finding.client_id.split("\n"))
        assert row["client_id"].removeprefix("'") == "\n".join(lines)
        for value in row.values():
            assert not value.lstrip(" \u3000").startswith(tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"))


def test_csv_without_clients_is_empty() -> None:
    assert "" == csv_text([])


def test_record_has_the_numbers_and_the_letter() -> None:
    (finding,) = worst_findings("shop")
    record = record_of(finding, 1, period=PERIOD)

    assert {
        "rank": 1,
        "client_id": "shop",
        "verdict": "over its limits",
        "is_trusted": False,
        "faults": ["refreshes-early", "token-per-call", "bursts", "ignores-retry-after", "over-limit"],
        "denied": 7200,
        "would_deny": 540,
        "retries_while_denied": 3600,
        "busiest_minute_requests": 50_000,
        "letter": letter_to(finding, PERIOD).text,
    }.items() <= record.items()
