"""The report as a letter, a page and a table, with clients that call themselves what they like."""

import csv
import io
import re
from html.parser import HTMLParser

import pytest

from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.core.statistics import ClientMinute, Source, Tally
from oauth_ratelimit.report import ClientFinding, find, letter_to
from oauth_ratelimit.report.letter import Span
from oauth_ratelimit.report.page import html_page
from oauth_ratelimit.report.table import csv_text, record_of

START_S = 1_700_002_800
SPAN = Span(START_S, START_S + 86_400, 3600.0)
LOGIN, REFRESH, OWN = (
    Source("user", "password"),
    Source("user", "refresh_token"),
    Source("client", "client_credentials"),
)

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</pre></style><b>",
    '=HYPERLINK("http://example.com","x")',
    "+1+1|cmd",
    "-2",
    "@SUM(1)",
    " =1",
    "\t=1",
    "\uff1d1+1",
    "\u3000\uff20SUM(1)",
    "\r\n=1",
    "rtl\u202egpj.exe",
    "nul\0nul",
    "a\nSubject: b",
    "é\U0001f511",
)


def findings(*names: str) -> list[ClientFinding]:
    """Return findings about clients that do everything wrong."""
    tally = Tally(100, denied=40, retries=20, would_deny=3)
    every = {LOGIN: tally, REFRESH: tally, OWN: tally}
    minutes = [
        ClientMinute(name, START_S + 60 * number, every, registers={1: 1}) for name in names for number in range(60)
    ]
    calm = [ClientMinute(name, START_S + 7200, {OWN: Tally(50_000)}) for name in names]
    return find([*minutes, *calm])


class Page(HTMLParser):
    """What a browser would see of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag and its attributes."""
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        """Note a text."""
        self.texts.append(data)


def test_letter() -> None:
    """The letter says what was seen, in numbers, and what helps; it is complete in itself."""
    (finding,) = findings("shop")
    letter = letter_to(finding, SPAN, error_uri="https://example.com/tokens")

    assert "Your client shop asks for too many access tokens" == letter.subject
    assert letter.text.startswith("Hello,\n\nfrom 2023-11-14 23:00 to 2023-11-15 23:00 UTC your OAuth client shop sent")
    for words in (
        "A token can be used for 1 hour.",
        "17,126 requests per user and hour, mostly refreshes of tokens that were still good.",
        "requests of the client's own in each hour",
        "3,600 of 7,200 denied requests came before the time in Retry-After was over.",
        "540 requests over the limit, admitted all the same in a dry run, and 7,200 answered with status 429.",
        "50,000 requests in the busiest minute, against",
        "wait for the seconds in its header Retry-After",
        "More about it: https://example.com/tokens",
    ):
        assert words in letter.text, letter.text


def test_letter_to_a_good_client() -> None:
    """A client that does nothing wrong is told so."""
    (finding,) = find([ClientMinute("shop", START_S, {OWN: Tally(1)})])
    letter = letter_to(finding, SPAN)

    assert "Access tokens of your client shop" == letter.subject
    assert "We saw nothing wrong with that." in letter.text
    assert "What helps" not in letter.text


@pytest.mark.parametrize(
    ("lifetime_s", "words"),
    ((3600, "1 hour"), (7200, "2 hours"), (600, "10 minutes"), (90, "90 seconds"), (86_400, "1 day")),
)
def test_lifetimes(lifetime_s: float, words: str) -> None:
    """Lifetimes are written in the largest unit that fits."""
    assert words == Span(0, 0, lifetime_s).lifetime


def test_page_with_hostile_names() -> None:
    """Whatever a client calls itself is text on the page, and no page of our making has a script or another host."""
    text = html_page(findings(*HOSTILE), SPAN, error_uri="https://example.com/?a=1&b=<2>")
    page = Page(text)

    assert not {"script", "img", "iframe", "link", "object", "form"} & page.tags
    assert {
        "href",
        "id",
        "class",
        "style",
        "lang",
        "charset",
        "name",
        "content",
        "http-equiv",
        "scope",
        "tabindex",
        "role",
        "aria-label",
    } >= page.attributes
    assert "default-src 'none'" in text
    assert {"#client-"} == {re.sub(r"\d", "", link) for link in re.findall(r'href="([^"]*)"', text)}
    seen = "".join(page.texts)
    for name in ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "rtl\\u202egpj.exe", "nul\\x00nul"):
        assert name in seen
    assert not re.search("[\u202e\0]", text)


def test_pages_of_few_words() -> None:
    """Nobody asked, or nobody asked too often: the page says so."""
    assert "No client has asked for a token" in html_page([], SPAN)
    assert "Every client keeps its tokens" in html_page(find([ClientMinute("shop", START_S, {OWN: Tally(1)})]), SPAN)
    assert "1 client asks for more than needed" in html_page(findings("shop"), SPAN)


def test_table_with_hostile_names() -> None:
    """No value of the table is a formula to a spreadsheet, and each is there, its controls as escapes."""
    found = findings(*HOSTILE)
    rows = list(
        csv.DictReader(io.StringIO(csv_text([record_of(each, rank, span=SPAN) for rank, each in enumerate(found, 1)])))
    )

    assert len(HOSTILE) == len(rows)
    for row, finding in zip(rows, found, strict=True):
        lines = map(visible_name, finding.client_id.split("\n"))
        assert row["client_id"].removeprefix("'") == "\n".join(lines)
        for value in row.values():
            assert not value.lstrip(" \u3000").startswith(tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"))


def test_empty_table() -> None:
    """Without clients there is no table."""
    assert "" == csv_text([])


def test_record() -> None:
    """A record has the figures and the letter."""
    (finding,) = findings("shop")
    record = record_of(finding, 1, span=SPAN)

    assert (1, "shop", "over its limits", False) == tuple(
        record[name] for name in ("rank", "client_id", "verdict", "is_trusted")
    )
    assert {"token-per-call", "bursts", "ignores-retry-after", "over-limit"} <= set(record["faults"])
    assert (7200, 540, 3600, 50_000) == tuple(
        record[name] for name in ("denied", "would_deny", "retries_while_denied", "busiest_minute_requests")
    )
    assert letter_to(finding, SPAN).text == record["letter"]
