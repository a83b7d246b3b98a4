"""Findings as records, for programs and spreadsheets."""

import csv
import io
from collections.abc import Sequence

from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.report.findings import ClientFinding
from oauth_ratelimit.report.letter import Period, letter_to

Record = dict[str, object]

# Spreadsheets take cells that start with these for formulas, also their full-width forms in East Asian languages.
FORMULA_STARTS = ("=", "+", "-", "@", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def record_of(finding: ClientFinding, rank: int, *, period: Period, error_uri: str | None = None) -> Record:
    """Return a finding as a record."""
    tally = finding.total.tally()
    busiest, busiest_s = finding.total.busiest
    letter = letter_to(finding, period, error_uri=error_uri)
    return {
        "rank": rank,
        "client_id": finding.client_id,
        "verdict": finding.verdict.value,
        "is_trusted": finding.is_trusted,
        "faults": [fault.value for fault in finding.faults],
        "requests": tally.offered,
        "issued": tally.issued,
        "denied": tally.denied,
        "would_deny": tally.would_deny,
        "retries_while_denied": tally.retries,
        "needed": round(finding.needed),
        "needless": finding.needless,
        "token_lifetime_s": finding.lifetime_s and list(finding.lifetime_s),
        "user_count": round(finding.total.user_count),
        "requests_per_user_hour": _rounded(finding.tokens_per_user_hour),
        "own_requests_per_hour": _rounded(finding.tokens_per_hour),
        "refresh_share": _rounded(finding.refresh_share),
        "busiest_minute_requests": busiest,
        "busiest_minute_s": busiest_s,
        "most_in_a_second": finding.total.burst,
        "subject": letter.subject,
        "letter": letter.text,
    }


def csv_text(records: Sequence[Record]) -> str:
    """Return records as CSV that is safe to open in a spreadsheet and to print in a terminal."""
    if not records:
        return ""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\r\n")
    writer.writeheader()
    for record in records:
        writer.writerow({name: csv_cell(value, separator=" ") for name, value in record.items()})
    return text.getvalue()


def csv_cell(value: object, *, separator: str) -> object:
    """Return a value for a cell, with control characters escaped and an apostrophe before a formula.

    Args:
        value: Number, text or list.
        separator: Text between the items of a list.
    """
    if isinstance(value, list | tuple):
        value = separator.join(map(str, value))
    if not isinstance(value, str):
        return value
    value = "\n".join(map(visible_name, value.split("\n")))
    return f"'{value}" if value.lstrip(" \u3000").startswith(FORMULA_STARTS) else value


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
