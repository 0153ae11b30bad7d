"""The page in a real browser: sorted, filtered, no error, light and dark, narrow and wide."""

import re
import shutil

import pytest

from fedjax_ssl import cli
from tests.report.folders import write_run, write_sweep

pytestmark = pytest.mark.thorough
WIDTHS = (390, 1400)
LEGEND = "document.querySelectorAll('[data-axis=round] .u-series:not(.edge)').length - 1"  # lines
# pixels of the largest chart that are not transparent
DRAWN = (
    "(c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.filter("
    "(v, i) => i % 4 === 3 && v > 0).length)(document.querySelector('[data-axis=round] canvas'))"
)


@pytest.fixture(scope="module")
def browser():
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs the package selenium")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("needs the programs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(
        options=options, service=webdriver.ChromeService(executable_path=driver)
    )
    yield found
    found.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The report of 100 runs, and of one that is not finished."""
    folder = tmp_path_factory.mktemp("sweep")
    write_sweep(folder, clients=11)
    write_run(folder / "unfinished", method="xclp", done=20, seed=9)
    assert (
        cli.main(
            [
                "report",
                str(folder),
                "--output",
                str(folder / "report.html"),
                "--baseline",
                "fedavg learning_rate=0.1",
            ]
        )
        == 0
    )
    assert (folder / "report.html").stat().st_size < 3_000_000
    return folder / "report.html"


def look(browser, page, width=1400, scheme="light"):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(page.as_uri())


def ask(browser, code):
    return browser.execute_script(f"return {code}")


def visible_rows(browser, column=None):
    """Names of the rows that are shown, or what a column is sorted by."""
    value = (
        "r.querySelector('.name').textContent"
        if column is None
        else f"r.cells[{column}].dataset.value"
    )
    return ask(
        browser,
        "[...document.querySelectorAll('.groups tbody tr')].filter(r => !r.hidden).map(r => "
        f"{value})",
    )


def click(browser, selector):
    browser.execute_script(f"document.querySelector({selector!r}).click()")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wrong_at_any_width_and_in_any_scheme(browser, page, width, scheme):
    look(browser, page, width, scheme)
    assert browser.get_log("browser") == []
    urls = [
        entry["message"]
        for entry in browser.get_log("performance")
        if "requestWillBeSent" in entry["message"]
    ]
    assert not [url for url in urls if '"url":"http' in url]
    # no sideways scrolling of the page, and the difference is in sight on a phone too
    assert ask(browser, "document.documentElement.scrollWidth") <= width
    cell = "document.querySelectorAll('.groups tbody td[data-sign]')[0].getBoundingClientRect()"
    assert 0 < ask(browser, f"{cell}.right") <= width and ask(browser, f"{cell}.height") > 0
    light = (
        sum(
            ask(
                browser,
                "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)",
            )
        )
        > 384
    )
    assert light == (scheme == "light")
    assert ask(browser, DRAWN) > 1_000
    click(browser, "#scheme")
    after = (
        sum(
            ask(
                browser,
                "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)",
            )
        )
        > 384
    )
    assert after != light


def test_tables_are_sorted_by_mouse_and_keyboard(browser, page):
    from selenium.webdriver.common.keys import Keys

    look(browser, page)
    click(browser, ".groups thead th:nth-child(3) button")
    values = [float(value) for value in visible_rows(browser, 2) if value]
    assert len(values) == 20 and values == sorted(values, reverse=True)
    head = browser.find_element("css selector", ".groups thead th:nth-child(3)")
    assert head.get_attribute("aria-sort") == "descending"
    head.find_element("css selector", "button").send_keys(Keys.ENTER)
    values = [float(value) for value in visible_rows(browser, 2) if value]
    assert values == sorted(values) and head.get_attribute("aria-sort") == "ascending"
    click(browser, ".groups thead th:first-child button")
    names = visible_rows(browser)
    assert names[:3] == [
        "fedavg, learning_rate=0.03",
        "fedavg, learning_rate=0.1",
        "fedavg, learning_rate=0.3",
    ]
    # the baseline has no difference and stays below
    click(browser, ".groups thead th:nth-child(4) button")
    assert visible_rows(browser)[-1] == "fedavg, learning_rate=0.1"


def test_the_filter_hides_rows_and_lines(browser, page):
    look(browser, page)
    click(browser, '[data-show="all"]')
    lines = ask(browser, LEGEND)
    field = browser.find_element("css selector", "#filter")
    field.send_keys("xclp 0.3")
    assert visible_rows(browser) == ["xclp, learning_rate=0.3"]
    assert (lines, ask(browser, LEGEND)) == (
        20,
        1,
    )
    assert ask(browser, "document.querySelector('#count').textContent") == "1 of 20 groups"
    field.clear()
    field.send_keys("nothing like this")
    assert visible_rows(browser) == [] and "nothing to draw" in ask(
        browser, "document.body.textContent"
    )
    field.clear()
    field.send_keys(" ")
    click(browser, '[data-show="best"]')
    assert ask(browser, LEGEND) == 7
    click(browser, ".groups tbody tr .mark[aria-pressed=true]")
    assert ask(browser, LEGEND) == 6
    assert browser.get_log("browser") == []


def test_the_pointer_is_told_the_values_of_all_lines(browser, page):
    from selenium.webdriver import ActionChains

    look(browser, page)
    plot = browser.find_element("css selector", "[data-axis=round] .u-over")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    ActionChains(browser).move_to_element_with_offset(plot, 5, 0).perform()
    values = ask(
        browser,
        "[...document.querySelectorAll('[data-axis=round] .u-series:not(.edge) .u-value')]"
        ".map(n => n.textContent)",
    )
    assert values[0] == "35" and len(values) == 8
    assert all(re.fullmatch(r"\d+(\.\d)? ± \d+(\.\d)?", value) for value in values[1:]), values


def test_everything_has_a_name_for_those_who_do_not_see(browser, page):
    look(browser, page)
    code = "[...document.querySelectorAll('button, select, input, svg[role=img], table, img')]"
    named = (
        "n => (n.labels?.length || n.ariaLabel || n.textContent.trim() || "
        "n.querySelector?.('caption') || n.alt)"
    )
    assert ask(browser, f"{code}.filter(n => !({named})(n)).length") == 0
    assert (
        ask(
            browser,
            "[...document.querySelectorAll('th:not(.u-legend th)')].filter(n => !n.scope).length",
        )
        == 0
    )
    assert ask(browser, "document.documentElement.lang") == "en"
    assert ask(
        browser, "new Set([...document.querySelectorAll('[id]')].map(n => n.id)).size"
    ) == ask(browser, "document.querySelectorAll('[id]').length")
    # What scrolls can be reached by the keyboard.
    assert (
        ask(
            browser,
            "[...document.querySelectorAll('.scroll')].filter(n => n.tabIndex !== 0).length",
        )
        == 0
    )
