"""The page in a real browser. Needs Chromium with its driver: ``apt-get install chromium chromium-driver``."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from rsipo.report.command import PAGE, report_command

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no Chromium with its driver: apt-get install chromium chromium-driver"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"),
        "--force-prefers-reduced-motion",  # no smooth scrolling away from under a click
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(120)
    driver.set_script_timeout(120)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def address(synthetic: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report of a SYNTHETIC run of a thousand tasks, some hostile, beside a smaller one."""
    root = tmp_path_factory.mktemp("browsed")
    runs = [
        synthetic(root / "long", steps=60, tasks=16, seed=1, hostile=True),
        synthetic(root / "short", steps=4, tasks=10, seed=2, transcripts=False, trust="one"),
    ]
    report_command(runs, root / "report")
    return f"file://{root / 'report' / PAGE}"


@pytest.fixture
def page(browser, address: str):
    """The page as it opens, in a wide window; afterwards nothing may have been logged, loaded, or run by a skill."""
    browser.set_window_size(1400, 1000)
    browser.get(address)
    browser.execute_script("localStorage.clear()")
    browser.get(address)
    yield browser
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.execute_script("return window.broken") is None


def find(page, selector: str) -> list:
    return page.find_elements(By.CSS_SELECTOR, selector)


def wait(page, condition: Callable[[], object]) -> None:
    WebDriverWait(page, 60).until(lambda _: condition())


def choose(page, name: str, text: str, expected: Callable[[], object]) -> None:
    """Choose in a filter; its event arrives some time later."""
    Select(page.find_element(By.ID, name)).select_by_visible_text(text)
    wait(page, expected)


def count(page) -> str:
    return page.find_element(By.ID, "count").text


def column(page, name: str) -> list[str]:
    """The texts of one column of the table."""
    heads = [head.text.split()[0] for head in find(page, "#heads th")]
    script = (
        "return [...document.querySelectorAll('#rows tr.task')].map(row => row.cells[arguments[0]].innerText.trim())"
    )
    return page.execute_script(script, heads.index(name))


def test_a_thousand_tasks_are_shown_a_page_at_a_time(page) -> None:
    assert count(page) == "1–50 of 1,000 tasks"
    assert len(find(page, "#rows tr")) == 50  # what keeps it free of lag
    page.find_element(By.ID, "last").click()
    assert count(page) == "951–1,000 of 1,000 tasks"
    assert not page.find_element(By.ID, "next").is_enabled()
    page.find_element(By.ID, "previous").click()
    assert page.find_element(By.ID, "page").text == "page 19 of 20"


def test_search_and_filters_narrow_the_table(page) -> None:
    page.find_element(By.ID, "search").send_keys("visit NEAREST")
    wait(page, lambda: "in all" in count(page))
    assert all("Visit the nearest" in text for text in column(page, "Task"))
    page.find_element(By.ID, "search").clear()
    page.find_element(By.ID, "search").send_keys("no such words")
    wait(page, lambda: count(page).startswith("0 tasks"))
    page.find_element(By.CSS_SELECTOR, ".filters [type=reset]").click()
    wait(page, lambda: count(page) == "1–50 of 1,000 tasks")

    choose(page, "type", "look_at_obj_in_light", lambda: set(column(page, "Type")) == {"look_at_obj_in_light"})
    choose(page, "status", "invalid", lambda: set(column(page, "Skill")) == {"invalid"})
    assert set(column(page, "Type")) == {"look_at_obj_in_light"}
    page.find_element(By.CSS_SELECTOR, ".filters [type=reset]").click()
    wait(page, lambda: count(page) == "1–50 of 1,000 tasks")
    page.find_element(By.ID, "from").send_keys("7")
    page.find_element(By.ID, "to").send_keys("7")
    wait(page, lambda: count(page).startswith("1–16 of 16"))
    choose(page, "run", "short", lambda: count(page).startswith("0 tasks"))


def test_columns_sort_both_ways_with_undefined_values_last(page) -> None:
    head = next(head for head in find(page, "#heads th") if head.text == "Δ")
    for direction, reverse in (("descending", True), ("ascending", False)):
        head.find_element(By.TAG_NAME, "button").click()
        assert head.get_attribute("aria-sort") == direction
        shown = [float(text.replace("−", "-")) for text in column(page, "Δ")]
        assert len(shown) == 50
        assert shown == sorted(shown, reverse=reverse)
    page.find_element(By.ID, "last").click()
    assert set(column(page, "Δ")) == {"–"}


def test_a_row_opens_to_all_that_is_known_of_its_task(page) -> None:
    choose(page, "status", "valid", lambda: "in all" in count(page))
    page.find_element(By.CSS_SELECTOR, "#rows tr:nth-child(2) button.open").click()
    wait(page, lambda: find(page, ".details .turns"))
    detail = find(page, ".details")[0]
    words = detail.text
    for part in ("Skill", "Evidence trajectory", "Evidence rollouts", "Control rollouts", "Replays with the skill"):
        assert part in words
    for symbol in (
        "Δ replay gain",
        "v its noise variance",
        "w shrinkage weight",
        "ĝ shrunk gain",
        "r skill reward",
        "ω trust",
    ):
        assert symbol in words
    assert len(find(page, ".details .chip")) == 12
    assert words.count("★") == 1
    assert find(page, ".details .turns li code")
    page.find_element(By.CSS_SELECTOR, "#rows button[aria-expanded=true]").click()
    assert not find(page, ".details")


def test_a_run_without_transcripts_says_so(page) -> None:
    choose(page, "run", "short", lambda: "in all" in count(page))
    page.find_element(By.CSS_SELECTOR, "#rows button.open").click()
    wait(page, lambda: find(page, ".details .estimates"))
    assert "Not recorded: this run is older than transcripts" in find(page, ".details")[0].text


def test_a_script_in_a_skill_is_shown_not_run(page) -> None:
    page.find_element(By.ID, "search").send_keys("window.broken")
    wait(page, lambda: "in all" in count(page))
    page.find_element(By.CSS_SELECTOR, "#rows button.open").click()
    wait(page, lambda: find(page, ".details .turns"))
    assert "<script>window.broken = true</script>" in find(page, ".details blockquote")[0].text
    assert not find(page, "main img, main script")


def test_everything_is_reached_by_keyboard(page) -> None:
    page.find_element(By.TAG_NAME, "body").send_keys("/")
    assert page.switch_to.active_element.get_attribute("id") == "search"
    first, second = find(page, "#rows button.open")[:2]
    page.execute_script("arguments[0].focus()", first)
    first.send_keys(Keys.ARROW_DOWN)
    assert page.switch_to.active_element == second
    second.send_keys(Keys.ENTER)
    wait(page, lambda: find(page, ".details .estimates"))
    assert second.get_attribute("aria-expanded") == "true"
    second.send_keys(Keys.ESCAPE)
    assert not find(page, ".details")
    tabs = find(page, "[role=tab]")
    page.execute_script("arguments[0].focus()", tabs[0])
    tabs[0].send_keys(Keys.ARROW_RIGHT)
    assert tabs[1].get_attribute("aria-selected") == "true"
    assert [panel.is_displayed() for panel in find(page, "[role=tabpanel]")] == [False, True]


@pytest.mark.parametrize("width", [380, 1400])
def test_light_and_dark_differ_and_no_width_scrolls_sideways(page, width: int) -> None:
    page.set_window_size(width, 900)
    colors = {}
    script = """
        const color = (selector, what) => getComputedStyle(document.querySelector(selector))[what];
        return [color("body", "backgroundColor"), color("body", "color"), color("svg.figure text", "fill")]"""
    for _ in range(3):
        page.find_element(By.ID, "theme").click()
        colors[page.find_element(By.ID, "theme").text] = tuple(page.execute_script(script))
        assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert colors.keys() == {"Theme: light", "Theme: dark", "Theme: auto"}
    for light, dark in zip(colors["Theme: light"], colors["Theme: dark"], strict=True):
        assert light != dark
    page.find_element(By.ID, "theme").click()
    page.refresh()
    assert page.find_element(By.ID, "theme").text == "Theme: light"  # remembered
