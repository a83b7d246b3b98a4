"""The report as an HTML page."""

import re
from html.parser import HTMLParser

import pytest

from oauth_ratelimit.report import ClientFinding
from oauth_ratelimit.report.page import html_page
from tests.report.reporting import HOSTILE_IDS, PERIOD, fine_finding, worst_findings


class Page(HTMLParser):
    """Tags, attributes and texts of a page."""

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


def test_client_ids_are_escaped() -> None:
    """The page has no script and loads nothing, whatever a client is called."""
    text = html_page(worst_findings(*HOSTILE_IDS), PERIOD, error_uri="https://example.com/?a=1&b=<2>")
    page = Page(text)

    assert not {"script", "img", "iframe", "link", "object", "form"} & page.tags
    known = "href id class style lang charset name content http-equiv scope tabindex role aria-label"
    assert page.attributes <= set(known.split())
    assert "default-src 'none'" in text
    assert {"#client-"} == {re.sub(r"\d", "", link) for link in re.findall(r'href="([^"]*)"', text)}
    seen = "".join(page.texts)
    for name in ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "rtl\\u202egpj.exe", "nul\\x00nul"):
        assert name in seen
    assert not re.search("[\u202e\0]", text)


@pytest.mark.parametrize(
    ("findings", "headline"),
    [
        ([], "No client requested a token"),
        ([fine_finding()], "Every client reuses its tokens"),
        (worst_findings("shop"), "1 client sends more requests than needed: "),
        (worst_findings("shop", "app"), "2 clients send more requests than needed: "),
    ],
    ids=["no clients", "no faults", "one client", "two clients"],
)
def test_headline_is_the_summary(findings: list[ClientFinding], headline: str) -> None:
    assert f"<h1>{headline}" in html_page(findings, PERIOD)
