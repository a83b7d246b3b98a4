"""Chromium, driven by Selenium."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from testbed.clock import wait_until

ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # Chromium refuses to run as root with one, and these pages are trusted
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    "--lang=en-GB",
)
DESKTOP, PHONE = (1280, 900), (320, 568)
CELLS = """
return [...document.querySelectorAll(arguments[0] + " tbody tr")].map((row) => [
  row.cells[0].innerText.trim(),
  Object.fromEntries([...row.cells].map((cell) => [cell.dataset.title, cell.innerText.trim()])),
]);
"""
TEXTS = "return [...document.querySelectorAll(arguments[0])].map((each) => each.innerText.trim()).join(' ')"
DRAWN_PIXELS = """
const canvas = document.querySelector(arguments[0] + " canvas");
if (!canvas || !canvas.width) return 0;
const probe = document.body.appendChild(document.createElement("i"));
probe.style.color = `var(${arguments[1]})`;
const colour = getComputedStyle(probe).color.match(/\\d+/g).map(Number);
probe.remove();
const copy = document.createElement("canvas");
[copy.width, copy.height] = [canvas.width, canvas.height];
const picture = copy.getContext("2d", { willReadFrequently: true });
picture.drawImage(canvas, 0, 0);
const { data } = picture.getImageData(0, 0, copy.width, copy.height);
let count = 0;
for (let at = 0; at < data.length; at += 4) {
  const isClose = colour.every((value, index) => Math.abs(data[at + index] - value) < 12);
  if (isClose && data[at + 3] > 200) count += 1;
}
return count;
"""


class Browser:
    """A browser window."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def resize(self, size: tuple[int, int], *, is_dark: bool = False) -> None:
        """Set the size of the window and the colour scheme of the system."""
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 640}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, url: str) -> None:
        self.driver.get(url)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def one(self, selector: str) -> WebElement:
        """Return an element as soon as it exists."""
        found = wait_until(lambda: self.all(selector), f"{selector} is there")
        return found[0]

    def all(self, selector: str) -> list[WebElement]:
        """Return the elements that exist now."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """Return the text of the elements that exist now."""
        return str(self.run(TEXTS, selector))

    def value(self, selector: str) -> str | None:
        """Return the value of a field; None if it is missing."""
        found: str | None = self.run("return document.querySelector(arguments[0])?.value", selector)
        return found

    def cells(self, table: str) -> dict[str, dict[str, str]]:
        """Return the texts of a table by the first cell of the row and the title of the column, in order."""
        return dict(self.run(CELLS, table))  # the driver would sort an object by its names

    def wait_for(self, words: str, selector: str = "main", timeout_s: float = 60.0) -> None:
        """Return as soon as an element contains a text."""
        wait_until(lambda: words in self.text(selector), f"{selector} shows {words!r}", timeout_s)

    def wait_for_content(self) -> None:
        """Return as soon as all parts and charts of the page have content."""
        wait_until(lambda: not self.all(".part:empty, .chart:empty"), "everything is shown")

    def click(self, selector: str) -> None:
        """Click an element. The page may replace it at any time."""

        def is_clicked() -> bool:
            try:
                self.run("arguments[0].scrollIntoView({block: 'center'})", self.one(selector))
                self.one(selector).click()
            except StaleElementReferenceException:
                return False
            return True

        wait_until(is_clicked, f"{selector} is clicked")

    def type(self, selector: str, text: str) -> None:
        self.one(selector).send_keys(text)

    def fill(self, selector: str, text: str) -> None:
        self.type(selector, Keys.CONTROL + "a" + Keys.NULL + text)

    def refresh(self) -> None:
        """Make the page refresh at once, as if it became visible again."""
        self.run("document.dispatchEvent(new Event('visibilitychange'))")

    def drawn_pixels(self, chart: str, colour: str) -> int:
        """Return the number of pixels of a chart in a colour of the palette, such as ``--bad``."""
        return int(self.run(DRAWN_PIXELS, chart, colour))

    @contextmanager
    def offline(self) -> Iterator[None]:
        """Keep the page from its server."""
        conditions = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.driver.execute_cdp_cmd("Network.enable", {})
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": True, **conditions})
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": False, **conditions})

    def set_timezone(self, name: str) -> None:
        """Set the time zone of the system, for pages opened from now on."""
        self.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": name})

    def press(self, *keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(*keys)

    def tab_to(self, selector: str, most: int = 60) -> None:
        """Press Tab until an element has the focus."""
        for _ in range(most):
            if self.run("return document.activeElement.matches(arguments[0])", selector):
                return
            self.press(Keys.TAB)
        raise AssertionError(f"{selector} cannot be reached by Tab")

    def console(self) -> list[str]:
        """Return the messages of the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start Chromium, and stop it afterwards."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
