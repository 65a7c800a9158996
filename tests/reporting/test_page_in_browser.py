"""Pages of reports in a real browser: headless Chromium, through its driver.

Run them with ``pytest -m browser``; they need Debian's chromium and chromium-driver.
"""

import base64
import itertools
import json
import shutil
import time

import pytest
from large_record import large_record
from records import record_of

from fl_epe.cli.main import main
from fl_epe.reporting import summarize, summarize_unmeasured, write_report

pytestmark = pytest.mark.browser

WIDTHS = (400, 800, 1400)
PAGES = ("whole", "stopped", "nothing", "no-record", "large", "compare")
PATIENCE = 60.0  # seconds to wait for charts, on a busy machine
RUN = [
    "run",
    "digits",
    "--num-canaries",
    "12",
    "--unobserved",
    "60",
    "--clients-per-round",
    "12",
]
RUN += ["--seed", "1", "--rounds", "10"]
GRID = [
    "compare",
    "--schedules",
    "epochs",
    "poisson",
    "--noise-multipliers",
    "0.3",
    "0.5",
]
GRID += [
    "--participations",
    "1",
    "2",
    "--rounds",
    "8",
    "--clients",
    "200",
    "--workers",
    "1",
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory, pictures_of_a_module):
    """The pages by name, each of another kind of run."""
    root = tmp_path_factory.mktemp("pages")
    assert main([*RUN, "--output", str(root / "whole")]) == 0
    stop = ["--stop-when", "epsilon-all-low > 8"]
    assert main([*RUN, *stop, "--output", str(root / "stopped")]) == 0
    write_report(
        summarize(record_of(0, faults=("round 3, it broke",))), root / "nothing"
    )
    unmeasured = summarize_unmeasured(
        "the audit could not read the model", delta=1e-5
    )
    write_report(unmeasured, root / "no-record")
    write_report(summarize(large_record()), root / "large")
    assert main([*GRID, "--output", str(root / "compare")]) == 0
    found = {
        name: root / name / "report.html" for name in PAGES if name != "compare"
    }
    return found | {"compare": root / "compare" / "compare.html"}


@pytest.fixture(scope="module")
def browser():
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
    ):
        options.add_argument(argument)
    options.set_capability(
        "goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"}
    )
    driver = webdriver.Chrome(
        options, Service(shutil.which("chromedriver") or "chromedriver")
    )
    yield driver
    driver.quit()


def _media(browser, media="screen", dark=False):
    scheme = {
        "name": "prefers-color-scheme",
        "value": "dark" if dark else "light",
    }
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"media": media, "features": [scheme]}
    )


def _open(browser, path, width, *, dark=False):
    """Load a page at a width, and wait until its charts are drawn."""
    size = {
        "width": width,
        "height": 900,
        "deviceScaleFactor": 1,
        "mobile": False,
    }
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    _media(browser, dark=dark)
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # of the page before
    browser.get(path.as_uri())
    end = time.monotonic() + PATIENCE
    while browser.find_elements("id", "plotly") and time.monotonic() < end:
        if (
            browser.execute_script(
                "return document.documentElement.dataset.charts"
            )
            == "drawn"
        ):
            return
        time.sleep(0.05)


def _requests(browser):
    """The addresses that were asked for since the page was opened."""
    messages = (
        json.loads(entry["message"])["message"]
        for entry in browser.get_log("performance")
    )
    return [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "dark", [pytest.param(False, id="light"), pytest.param(True, id="dark")]
)
def test_a_page_is_whole(pages, browser, name, width, dark):
    _open(browser, pages[name], width, dark=dark)
    assert browser.get_log("browser") == []
    others = [
        url
        for url in _requests(browser)
        if not url.startswith(("data:", "blob:"))
    ]
    assert others == [pages[name].as_uri()]
    figures = len(browser.find_elements("css selector", "figure.chart"))
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('figure.chart.drawn .plot')]"
        ".filter(one => one.querySelector('.main-svg') && one.clientWidth > 250).length"
    )
    assert drawn == figures
    assert (figures > 0) == (name not in ("no-record", "compare"))
    inside, shown = browser.execute_script(
        "const page = document.documentElement; return [page.scrollWidth, page.clientWidth]"
    )
    assert inside <= shown
    lightness = browser.execute_script(
        "return ['backgroundColor', 'color'].map(key => "
        "getComputedStyle(document.body)[key].match(/\\d+/g).slice(0, 3)"
        ".reduce((sum, part) => sum + Number(part), 0))"
    )
    assert (lightness[0] < lightness[1]) is dark


@pytest.mark.parametrize("width", [400, 1400])
def test_every_number_of_the_table_is_on_the_screen(pages, browser, width):
    _open(browser, pages["whole"], width)
    right = browser.execute_script(
        "return [...document.querySelectorAll('table.rows td')].map(one => "
        "one.getBoundingClientRect().right)"
    )
    assert len(right) == 8
    assert max(right) <= width


def test_tables_sort(pages, browser):
    _open(browser, pages["whole"], 800)
    opens = "document.querySelectorAll('details.data').forEach(one => one.open = true)"
    browser.execute_script(opens)
    table = browser.find_element(
        "css selector", "#epsilon table[data-sortable]"
    )
    heads = table.find_elements("css selector", "thead th")
    cells = "return [...arguments[0].tBodies[0].rows].map(row => row.cells[0].textContent)"
    assert heads[0].get_attribute("aria-sort") == "none"
    found = []
    for direction in ("ascending", "descending"):
        browser.execute_script(
            "arguments[0].querySelector('button').click()", heads[0]
        )
        assert heads[0].get_attribute("aria-sort") == direction
        found.append(browser.execute_script(cells, table))
    assert sorted(found[0]) == sorted(found[1])
    assert (found[0][0], found[0][-1]) == (found[1][-1], found[1][0])
    browser.execute_script(
        "arguments[0].querySelector('button').click()", heads[1]
    )
    assert heads[0].get_attribute("aria-sort") == "none"


def test_every_table_of_numbers_sorts(pages, browser):
    for name, least in (("whole", 4), ("compare", 2)):
        _open(browser, pages[name], 800)
        tables = browser.find_elements("css selector", "table[data-sortable]")
        assert len(tables) >= least
        for table in tables:
            heads = table.find_elements(
                "css selector", "thead tr:last-child th"
            )
            buttons = table.find_elements("css selector", "thead button")
            assert len(buttons) == len(heads) > 1


def test_an_axis_can_be_logarithmic(pages, browser):
    _open(browser, pages["whole"], 800)
    button = browser.find_element(
        "css selector", "#epsilon button[data-axis='y']"
    )
    kind = (
        "return document.querySelector('#epsilon .plot')._fullLayout.yaxis.type"
    )
    for pressed, expected in (("true", "log"), ("false", "linear")):
        button.click()
        assert button.get_attribute("aria-pressed") == pressed
        end = time.monotonic() + PATIENCE
        while (
            browser.execute_script(kind) != expected and time.monotonic() < end
        ):
            time.sleep(0.02)
        assert browser.execute_script(kind) == expected
    assert browser.get_log("browser") == []


def test_colors_of_charts_follow_the_browser(pages, browser):
    _open(browser, pages["whole"], 800)
    color = (
        "return document.querySelector('#epsilon .plot')._fullLayout.font.color"
    )
    light = browser.execute_script(color)
    _media(browser, dark=True)
    end = time.monotonic() + PATIENCE
    while browser.execute_script(color) == light and time.monotonic() < end:
        time.sleep(0.02)
    assert browser.execute_script(color) != light


def test_print_has_still_pictures_and_what_is_folded(pages, browser):
    _open(browser, pages["whole"], 800)
    pdf = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})[
        "data"
    ]
    assert base64.b64decode(pdf).startswith(b"%PDF")
    _media(browser, "print")
    shown = browser.execute_script(
        "return ['.still img', '.plot'].map(what => [...document.querySelectorAll(what)]"
        ".filter(one => one.checkVisibility()).length)"
    )
    assert shown == [4, 0]
    opened = browser.execute_script(
        "dispatchEvent(new Event('beforeprint'));"
        "return [...document.querySelectorAll('details')].map(one => [one.className, one.open])"
    )
    assert {tuple(pair) for pair in opened} == {
        ("", True),
        ("notes", True),
        ("data", False),
    }


def test_without_scripts_the_still_pictures_stand(pages, browser):
    browser.execute_cdp_cmd(
        "Emulation.setScriptExecutionDisabled", {"value": True}
    )
    try:
        for width in WIDTHS:
            _open_still(browser, pages["whole"], width)
            images = browser.find_elements("css selector", ".still img")
            assert len(images) == 4
            for image in images:
                assert 200 < image.rect["width"] < width
                assert image.rect["height"] > 100
            assert not browser.find_elements(
                "css selector", "figure.drawn, th button"
            )
    finally:
        browser.execute_cdp_cmd(
            "Emulation.setScriptExecutionDisabled", {"value": False}
        )


def _open_still(browser, path, width):
    size = {
        "width": width,
        "height": 900,
        "deviceScaleFactor": 1,
        "mobile": False,
    }
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    _media(browser)
    browser.get(path.as_uri())


def test_what_is_drawn_has_words_and_numbers(pages, browser):
    _open(browser, pages["large"], 800)
    figures = browser.find_elements("css selector", "figure.chart")
    assert figures
    for figure in figures:
        label = figure.find_element("css selector", ".plot").get_attribute(
            "aria-label"
        )
        assert any(letter.isdigit() for letter in label)
        assert (
            figure.find_element("css selector", "img").get_attribute("alt")
            == label
        )
        rows = figure.find_elements("css selector", "details.data tbody tr")
        assert 1 <= len(rows) <= 1000
    assert pages["large"].stat().st_size < 4_000_000


def test_headings_and_landmarks_are_in_order(pages, browser):
    for name in PAGES:
        _open(browser, pages[name], 800)
        levels = browser.execute_script(
            "return [...document.querySelectorAll('h1, h2, h3, h4')].map(one => +one.tagName[1])"
        )
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(b <= a + 1 for a, b in itertools.pairwise(levels))
        assert len(browser.find_elements("css selector", "main")) == 1
        for table in browser.find_elements("css selector", "table"):
            assert table.find_elements("css selector", "caption")
            assert not table.find_elements("css selector", "th:not([scope])")
