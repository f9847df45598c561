"""A headless Chromium with the few verbs that the tests use, and the made-up report as a file."""

from __future__ import annotations

import csv
import io
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zosam.lab.report import page

PIXELS = "return [...document.querySelectorAll('#figure-{} canvas')].map((c) => c.toDataURL()).join()"


class Browser:
    """Open a page, click, set, look at pixels, download."""

    def __init__(self, webdriver: Any, chromium: str, driver: str) -> None:
        self.webdriver = webdriver
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for flag in (
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--window-size=1280,900",
        ):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        self.do = self.driver.execute_script
        self.cdp = self.driver.execute_cdp_cmd

    def open(self, path: Path, width: int = 1280, scheme: str = "light") -> None:
        self.folder = path.parent / "downloads"
        self.folder.mkdir(exist_ok=True)
        self.cdp("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(self.folder)})
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.cdp("Emulation.setDeviceMetricsOverride", metrics)
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        self.cdp("Emulation.setEmulatedMedia", {"features": [{"name": k, "value": v} for k, v in features.items()]})
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        self.driver.get(path.as_uri())
        self.frame()

    def frame(self) -> None:
        """Wait until what was asked for is drawn."""
        self.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(() => arguments[0]()))")

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def click(self, selector: str) -> None:
        node = self.one(selector)
        self.do("arguments[0].scrollIntoView({block: 'center'})", node)
        node.click()
        self.frame()

    def set(self, selector: str, value: Any, event: str = "input") -> None:
        script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event(arguments[2]))"
        self.do(script, self.one(selector), value, event)
        self.frame()

    def choose(self, selector: str, index: int) -> None:
        script = "arguments[0].selectedIndex = arguments[1]; arguments[0].dispatchEvent(new Event('change'))"
        self.do(script, self.one(selector), index)
        self.frame()

    def pixels(self, figure: str) -> str:
        return self.do(PIXELS.format(figure))

    def download(self, selector: str, suffix: str) -> bytes:
        for old in self.folder.iterdir():
            old.unlink()
        self.click(selector)
        for _ in range(200):
            found = [p for p in self.folder.iterdir() if p.suffix == suffix and p.stat().st_size]
            if found:
                return found[0].read_bytes()
            time.sleep(0.05)
        raise AssertionError(f"nothing was downloaded by {selector}")

    def csv(self, selector: str) -> list[list[str]]:
        return list(csv.reader(io.StringIO(self.download(selector, ".csv").decode(), newline="")))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install selenium")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if not found or not driver:
        pytest.skip("no chromium or no chromedriver: apt-get install chromium chromium-driver")
    browser = Browser(webdriver, found, driver)
    yield browser
    browser.driver.quit()


@pytest.fixture
def path(tmp_path, report):
    page.write(tmp_path / "report.html", report)
    return tmp_path / "report.html"


@pytest.fixture
def hostile_path(tmp_path, hostile):
    page.write(tmp_path / "hostile.html", hostile)
    return tmp_path / "hostile.html"


@pytest.fixture
def browser(chromium, path):
    chromium.open(path)
    return chromium
