"""The report page in a real browser: every width, light and dark, every control."""

# pyright: reportMissingImports=false

from __future__ import annotations

import itertools
import json

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

WIDTHS = (400, 1400)
SCHEMES = ("light", "dark")
# Boxes of what can be seen, with the text and the name of the group.
BOXES = """
const texts = [...document.querySelectorAll('.plot text')];
return texts.filter(t => t.getClientRects().length).map(t => {
  const r = t.getBoundingClientRect();
  return {text: t.textContent, kind: t.parentNode.getAttribute('class'),
          plot: [...document.querySelectorAll('.plot')].indexOf(t.closest('.plot')),
          left: r.left, right: r.right, top: r.top, bottom: r.bottom};
});"""
# What a figure shows, for the scale that is on.
GEOMETRY = """
const plot = arguments[0].querySelector('.plot');
const all = (query, ...keys) => [...plot.querySelectorAll(query)]
  .filter(e => !e.closest('[hidden]'))
  .map(e => [e.textContent, ...keys.map(k => e.getAttribute(k))]);
return JSON.stringify([plot.dataset.axis, plot.dataset.scale,
  all('.y-ticks text', 'y'), all('.x-ticks text', 'x'), all('.labels text', 'y'), all('.x-label'),
  arguments[0].querySelector('.y-label').textContent,
  all('.' + plot.dataset.scale, 'transform')
    .map(([_, way]) => way.match(/[-0-9.e]+/g).map(Number))]);"""


@pytest.fixture
def show(browser, addresses):
    """Open a page at a width, light or dark."""

    def call(name: str, width: int = 1400, scheme: str = "light"):
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        feature = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": feature})
        browser.get_log("browser")
        browser.get_log("performance")
        browser.get(addresses[name])
        return browser

    return call


def figure_of(driver, index: int = 0):
    return driver.find_elements(By.TAG_NAME, "figure")[index]


def geometry(driver, figure) -> list:
    return json.loads(driver.execute_script(GEOMETRY, figure))


@pytest.mark.parametrize("name", ["ordinary", "nasty", "crowded", "leaderboard"])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_overlaps_or_is_cut(show, picture, name, width, scheme):
    driver = show(name, width, scheme)
    picture(driver, f"{name}-{width}-{scheme}")
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    boxes = driver.execute_script(BOXES)
    assert boxes
    for box in boxes:
        assert box["left"] >= 0, box
        assert box["right"] <= width, box
    for one, other in itertools.combinations(boxes, 2):
        if one["plot"] != other["plot"]:
            continue
        apart = (
            one["right"] <= other["left"] + 1 or other["right"] <= one["left"] + 1
            or one["bottom"] <= other["top"] + 4 or other["bottom"] <= one["top"] + 4
        )  # fmt: skip
        assert apart, (one, other)
    back = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert back == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme]


@pytest.mark.parametrize("name", ["ordinary", "nasty", "leaderboard"])
def test_no_request_and_no_complaint(show, name):
    driver = show(name)
    for control in driver.find_elements(By.CSS_SELECTOR, "input, th button"):
        driver.execute_script("arguments[0].click()", control)
    assert driver.get_log("browser") == []
    sent = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [
        m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in asked if url.startswith("file:")]) == 1


@pytest.mark.parametrize("index", [0, 1])
def test_the_script_draws_what_was_drawn_without_it(show, index):
    driver = show("ordinary")
    figure = figure_of(driver, index)
    before = geometry(driver, figure)
    for query in ('[value="gradients"]', '[value="linear"]', '[value="log"]', '[type="checkbox"]'):
        figure.find_element(By.CSS_SELECTOR, f"input{query}").click()
    assert geometry(driver, figure) != before
    for query in ('[value="rounds"]', f'[value="{before[1]}"]', '[type="checkbox"]'):
        figure.find_element(By.CSS_SELECTOR, f"input{query}").click()
    after = geometry(driver, figure)
    assert after[:-1] == before[:-1]
    for one, other in zip(after[-1], before[-1], strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-5)


def test_every_axis_and_scale(show, picture):
    driver = show("ordinary")
    figure = figure_of(driver)
    ends = {"gradients": "250k", "uploads": "15k", "rounds": "3k"}
    for (axis, end), scale in itertools.product(ends.items(), ("linear", "log")):
        figure.find_element(By.CSS_SELECTOR, f'input[value="{axis}"]').click()
        figure.find_element(By.CSS_SELECTOR, f'input[value="{scale}"]').click()
        seen = geometry(driver, figure)
        assert seen[:2] == [axis, scale]
        assert seen[3][-1][0] == end
        assert ("logarithmic" in seen[6]) == (scale == "log")
        assert axis.rstrip("s") in seen[5][0][0] or axis == "uploads"
        status = figure.find_element(By.CSS_SELECTOR, "[role=status]").get_attribute("textContent")
        assert str(status).startswith("5 curves shown, by ")
        picture(driver, f"axis-{axis}-{scale}")
        fedavg, memory = seen[-1][0], seen[-1][4]
        ratio = 60.0 / 95.5 if axis == "gradients" else 1.0  # of the gradients per round
        assert fedavg[0] / memory[0] == pytest.approx(ratio, rel=1e-4)


def test_methods_are_switched_off_and_the_axis_follows(show, picture):
    driver = show("ordinary")
    figure = figure_of(driver)
    boxes = figure.find_elements(By.CSS_SELECTOR, "[type=checkbox]")
    for box in boxes[1:]:
        box.click()
    alone = geometry(driver, figure)
    assert [text for text, _ in alone[4]] == ["FedAvg"]
    assert alone[2][0][0] == "0.1"  # the others go down to 0.001
    picture(driver, "one-method")
    boxes[0].click()
    assert geometry(driver, figure)[4] == []  # nothing left, and no complaint
    assert driver.get_log("browser") == []


def test_bands_and_labels_come_back_when_few_curves_are_left(show, picture):
    driver = show("crowded")
    figure = figure_of(driver)
    bands = figure.find_elements(By.CSS_SELECTOR, ".log .band")
    assert not any(band.is_displayed() for band in bands)
    assert geometry(driver, figure)[4] == []
    for box in figure.find_elements(By.CSS_SELECTOR, "[type=checkbox]")[5:]:
        driver.execute_script("arguments[0].click()", box)
    assert [text for text, _ in geometry(driver, figure)[4]] == [f"method {i}" for i in range(5)]
    assert [band.is_displayed() for band in bands[:6]] == [True] * 5 + [False]


@pytest.mark.parametrize("column", [0, 1, 2, 3])
def test_tables_are_sorted_by_number_or_by_word(show, column):
    driver = show("ordinary")
    table = driver.find_element(By.TAG_NAME, "table")
    heading = table.find_elements(By.CSS_SELECTOR, "thead th")[column]

    def cells() -> list[tuple[str | None, str]]:
        found = table.find_elements(By.CSS_SELECTOR, f"tbody tr > :nth-child({column + 1})")
        return [(cell.get_attribute("data-value"), cell.text) for cell in found]

    for times in (1, 2):
        heading.find_element(By.TAG_NAME, "button").click()
        expected = "ascending" if times == 1 else "descending"
        assert heading.get_attribute("aria-sort") == expected
        numbers = [float(value) for value, _ in cells() if value is not None]
        assert numbers == sorted(numbers, reverse=times == 2)
        if numbers:  # words stay below numbers
            assert all(value is None for value, _ in cells()[len(numbers) :])
        else:
            words = [word for _, word in cells()]
            assert words == sorted(words, reverse=times == 2)
    assert len(table.find_elements(By.CSS_SELECTOR, "[aria-sort]")) == 1


def test_everything_can_be_done_by_keyboard(show):
    driver = show("ordinary")
    figure = figure_of(driver)
    reached = []
    for _ in range(60):
        driver.switch_to.active_element.send_keys(Keys.TAB)
        active = driver.switch_to.active_element
        if active.tag_name == "body":
            break
        reached.append((active.tag_name, active.get_attribute("type")))
        outline = driver.execute_script(
            "const s = getComputedStyle(arguments[0]); return s.outlineStyle + s.outlineWidth",
            active,
        )
        assert outline == "solid3px"
    kinds = {kind: reached.count(kind) for kind in set(reached)}
    assert kinds["input", "radio"] == 4  # one stop for each group; arrows move within
    assert kinds["input", "checkbox"] == 7
    assert kinds["button", "button"] == 8
    axis = figure.find_element(By.CSS_SELECTOR, 'input[value="rounds"]')
    axis.send_keys(Keys.ARROW_RIGHT)
    assert geometry(driver, figure)[0] == "uploads"
    figure.find_element(By.CSS_SELECTOR, "[type=checkbox]").send_keys(Keys.SPACE)
    assert "FedAvg" not in [text for text, _ in geometry(driver, figure)[4]]


def test_what_a_screen_reader_is_told(show):
    driver = show("ordinary")
    driver.execute_cdp_cmd("Accessibility.enable", {})
    nodes = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    seen: dict[str, list[str]] = {}
    for node in nodes:
        if not node.get("ignored"):
            role = node["role"]["value"]
            seen.setdefault(role, []).append(node.get("name", {}).get("value", ""))
    assert seen["image"] == ["Distance to the optimum", "Test error"]
    for role in ("radio", "checkbox", "button", "region", "figure", "columnheader"):
        assert seen[role], role
        assert all(seen[role]), (role, seen[role])
    assert set(seen["group"]) >= {"Methods", "Horizontal axis", "Vertical axis"}
    assert "Last values" in seen["table"]
    images = [n for n in nodes if n.get("role", {}).get("value") == "image"]
    assert all("Last values: FedAvg: 0." in n["description"]["value"] for n in images)


@pytest.mark.parametrize("width", WIDTHS)
def test_without_scripts_the_page_is_static_and_complete(scriptless, addresses, picture, width):
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    scriptless.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scriptless.get(addresses["ordinary"])
    picture(scriptless, f"scriptless-{width}")
    shown = {
        query: [part.is_displayed() for part in scriptless.find_elements(By.CSS_SELECTOR, query)]
        for query in (
            "input",
            "th button",
            ".series",
            ".methods label",
            "tbody tr",
            ".plot",
            "section > pre",
            "summary",
        )
    }
    assert not any(shown["input"])
    assert shown["th button"] == []
    assert len(shown["tbody tr"]) == 7
    for query in (".series", ".methods label", "tbody tr", ".plot", "section > pre", "summary"):
        assert shown[query], query
        assert all(shown[query]), query


def test_in_print_the_page_is_light_and_has_no_controls(show, picture):
    driver = show("ordinary", 800, "dark")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    picture(driver, "print")
    assert not any(box.is_displayed() for box in driver.find_elements(By.TAG_NAME, "input"))
    back = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert back == "rgb(255, 255, 255)"
    pdf = driver.execute_cdp_cmd("Page.printToPDF", {})["data"]
    assert len(pdf) > 10_000


@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_says_that_it_scrolls_where_it_does(show, addresses, width):
    for name in addresses:
        driver = show(name, width)
        for box in driver.find_elements(By.CLASS_NAME, "scroll"):
            beyond = driver.execute_script(
                "return arguments[0].scrollWidth - arguments[0].clientWidth", box
            )
            said = driver.execute_script(
                "return getComputedStyle(arguments[0].querySelector('caption'), '::after').content",
                box,
            )
            assert ("Scroll sideways" in said) == (beyond > 1), (name, width)
