"""The report as a single HTML page without scripts or files from other hosts."""

from collections.abc import Iterator, Sequence
from html import escape

from oauth_ratelimit.core.key import visible_name
from oauth_ratelimit.report.findings import ClientFinding, Fault, Verdict
from oauth_ratelimit.report.letter import Period, letter_to, lifetime_text, observations

_STYLE = """
:root { color-scheme: light dark; --paper: #f6f7f9; --card: #fff; --line: #dfe3e8; --text: #1a2028; --dim: #566170;
  --soft: #f0f2f5; --bar: #3b82c4; --bad: #b3261e; --bad-soft: #fce8e6; --warn: #7a5000; --warn-soft: #fdf1d7;
  --good: #0a6b4a; --good-soft: #e1f4ec; }
@media (prefers-color-scheme: dark) { :root { --paper: #10141a; --card: #181e26; --line: #2c3541; --text: #e6eaf0;
  --dim: #9ca7b5; --soft: #202731; --bar: #4f9fe0; --bad: #ff8d85; --bad-soft: #432220; --warn: #f0c15a;
  --warn-soft: #3a2e12; --good: #5fd0a5; --good-soft: #143329; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 0; overflow-wrap: anywhere; }
p { margin: .25rem 0; }
.dim { color: var(--dim); }
.scroll { overflow-x: auto; margin: 1.25rem 0 2rem; border: 1px solid var(--line); border-radius: 10px;
  background: var(--card); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .45rem .75rem; white-space: nowrap; border-top: 1px solid var(--line); }
thead th { border-top: 0; color: var(--dim); font-weight: 600; font-size: .85rem; vertical-align: bottom; }
th:nth-child(2), td:nth-child(2), th:nth-child(3), td:nth-child(3) { text-align: left; }
td:nth-child(2) { white-space: normal; overflow-wrap: anywhere; min-width: 10rem; }
.bar { display: block; height: 4px; margin-top: 3px; border-radius: 2px; background: var(--bar); min-width: 1px; }
.verdict { display: inline-block; padding: .05rem .55rem; border-radius: 99px; font-size: .85rem; font-weight: 600; }
.over { color: var(--bad); background: var(--bad-soft); }
.wasteful { color: var(--warn); background: var(--warn-soft); }
.fine { color: var(--good); background: var(--good-soft); }
article { margin: 1rem 0; padding: 1rem 1.25rem; border: 1px solid var(--line); border-radius: 10px;
  background: var(--card); }
article header { display: flex; flex-wrap: wrap; gap: .35rem .75rem; align-items: center; margin-bottom: .5rem; }
ul { margin: .5rem 0; padding-left: 1.25rem; }
dl { display: flex; flex-wrap: wrap; gap: .5rem 2rem; margin: .75rem 0; }
dt { color: var(--dim); font-size: .85rem; }
dd { margin: 0; font-size: 1.1rem; font-variant-numeric: tabular-nums; }
summary { cursor: pointer; font-weight: 600; padding: .35rem 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .25rem 0 0; padding: .85rem 1rem; border-radius: 8px;
  background: var(--soft); font: 13.5px/1.5 ui-monospace, monospace; }
a { color: inherit; }
@media print { details > * { display: block; } article { break-inside: avoid; } }
"""

NOTHING = "–"

_VERDICTS = {Verdict.OVER_LIMIT: "over", Verdict.WASTEFUL: "wasteful", Verdict.FINE: "fine"}

_FAULTS = {
    Fault.REFRESHES_EARLY: "Refreshes tokens that are still valid",
    Fault.LOGS_IN_AGAIN: "Requests new tokens for the same users repeatedly",
    Fault.TOKEN_PER_CALL: "Requests tokens without a user repeatedly",
    Fault.BURSTS: "Sends requests in bursts",
    Fault.IGNORES_RETRY_AFTER: "Ignores Retry-After",
    Fault.OVER_LIMIT: "Exceeds its limits",
}


def html_page(findings: Sequence[ClientFinding], period: Period, *, error_uri: str | None = None) -> str:
    """Return the page.

    Args:
        findings: Findings, the worst client first.
        period: Time of the findings.
        error_uri: Address of a page that explains how to reuse tokens, for the letters.
    """
    title = f"Clients and their tokens, {period}"
    faulty = [finding for finding in findings if finding.faults]
    body = [
        f"<h1>{escape(_headline(findings, faulty))}</h1>",
        f'<p class="dim">{escape(str(period))} · needed: one '
        "token per user and hour, or per hour and process of a client · numbers of users are estimates</p>",
    ]
    if findings:
        body += _table(findings)
    for rank, finding in enumerate(findings, 1):
        if finding.faults:
            body += _article(finding, rank, period=period, error_uri=error_uri)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n" + "\n".join(body) + "\n"
        "</body>\n</html>\n"
    )


def _headline(findings: Sequence[ClientFinding], faulty: Sequence[ClientFinding]) -> str:
    if not findings:
        return "No client requested a token"
    if not faulty:
        return "Every client reuses its tokens"
    offered, needless = sum(each.offered for each in findings), sum(each.needless for each in faulty)
    clients = "1 client sends" if len(faulty) == 1 else f"{len(faulty)} clients send"
    return f"{clients} more requests than needed: {needless:,} of {offered:,}"


def _table(findings: Sequence[ClientFinding]) -> Iterator[str]:
    most = max(1, *(finding.needless for finding in findings))
    heads = ("#", "Client", "Verdict", "Requests", "Needless", "Denied", "Users", "Per user<br>and hour", "Refreshes")
    yield '<div class="scroll" tabindex="0" role="region" aria-label="All clients"><table><thead><tr>'
    yield "".join(f'<th scope="col">{head}</th>' for head in heads)
    yield "</tr></thead><tbody>"
    for rank, finding in enumerate(findings, 1):
        tally = finding.total.tally()
        name = escape(visible_name(finding.client_id))
        cells = (
            str(rank),
            f'<a href="#client-{rank}">{name}</a>' if finding.faults else name,
            _badge(finding),
            f"{tally.offered:,}",
            f"{finding.needless:,}{_bar(finding.needless / most)}",
            f"{tally.denied:,}{_would_deny(tally.would_deny)}",
            f"{round(finding.total.user_count):,}",
            _number(finding.tokens_per_user_hour),
            _percent(finding.refresh_share),
        )
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    yield "</tbody></table></div>"


def _article(finding: ClientFinding, rank: int, *, period: Period, error_uri: str | None) -> Iterator[str]:
    tally = finding.total.tally()
    letter = letter_to(finding, period, error_uri=error_uri)
    facts = (
        ("requests", f"{tally.offered:,}"),
        ("a token is valid for", lifetime_text(finding) or NOTHING),
        ("tokens needed, about", f"{round(finding.needed):,}"),
        ("requests per user and hour", _number(finding.tokens_per_user_hour)),
        ("requests without a user per hour", _number(finding.tokens_per_hour)),
        ("refreshes", _percent(finding.refresh_share)),
        ("busiest minute", f"{finding.total.busiest[0]:,}"),
        ("most in a second", f"{finding.total.burst:,}"),
        ("retries while denied", _percent(finding.retry_share)),
    )
    yield f'<article id="client-{rank}"><header><h2>{rank}. {escape(visible_name(finding.client_id))}</h2>'
    yield f"{_badge(finding)}</header><ul>"
    yield from (f"<li><b>{_FAULTS[fault]}.</b> {escape(text)}</li>" for fault, text in observations(finding))
    yield "</ul><dl>"
    yield from (f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts if value != NOTHING)
    yield f"</dl><details><summary>Letter to the owner</summary><pre>{escape(f'Subject: {letter.subject}')}\n"
    yield f"{escape(letter.text)}</pre></details></article>"


def _bar(share: float) -> str:
    return f'<span class="bar" style="width:{share:.0%}"></span>' if share else ""


def _would_deny(count: int) -> str:
    return f' <span class="dim">+{count:,} in a dry run</span>' if count else ""


def _badge(finding: ClientFinding) -> str:
    trusted = ' <span class="dim">trusted</span>' if finding.is_trusted else ""
    return f'<span class="verdict {_VERDICTS[finding.verdict]}">{finding.verdict.value}</span>{trusted}'


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0%}"
