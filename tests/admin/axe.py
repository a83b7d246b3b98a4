"""Accessibility rules of axe-core, run in an open page."""

from pathlib import Path

from tests.admin.browser import Browser

SCRIPT = Path(__file__).parents[1] / "support" / "vendor" / "axe-core" / "axe.min.js"
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
RUN = """
const [rules, done] = arguments;
axe.run(document, { runOnly: rules }).then(({ violations }) => done(violations.map(({ id, help, nodes }) => (
  `${id}: ${help}: ${nodes.slice(0, 3).map((node) => node.html.slice(0, 200)).join(" | ")}`
))));
"""


def violations(browser: Browser) -> list[str]:
    """Return the rules of WCAG 2.2 AA, and of good practice, that the page breaks, with the first elements."""
    browser.run(SCRIPT.read_text())
    return list(browser.driver.execute_async_script(RUN, list(RULES)))  # type: ignore[no-untyped-call]
