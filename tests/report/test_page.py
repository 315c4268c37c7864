"""The report page as text: well formed, complete, harmless, small."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib.resources import files

import numpy as np
import page_samples
import pytest

from isfed.report.html_markup import VOID
from isfed.report.html_page import page
from isfed.report.page_data import Figure, PageData, PageTable, Series, TableCell

PAGES = {name: getattr(page_samples, name)() for name in ("ordinary", "nasty", "crowded")}
CSS = files("isfed.report").joinpath("page.css").read_text(encoding="utf-8")


class Tree(HTMLParser):
    """The elements of a page, in order; refuses what is not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str], tuple[str, ...]]] = []
        self.texts: list[tuple[str, str]] = []  # (element, text)
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names), f"an attribute twice in <{tag}>: {names}"
        found = {name: value or "" for name, value in attrs}
        self.elements.append((tag, found, tuple(self.open)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        raise AssertionError(f"<{tag}/>")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, *names: str) -> list[dict[str, str]]:
        return [attrs for tag, attrs, _ in self.elements if tag in names]


@pytest.fixture(scope="module", params=PAGES)
def text(request) -> str:
    return page(PAGES[request.param])


@pytest.fixture(scope="module")
def tree(text) -> Tree:
    return Tree(text)


def test_a_strict_parser_finds_no_error(text):
    html5lib = pytest.importorskip("html5lib", reason="make test-report installs html5lib")
    html5lib.HTMLParser(strict=True).parse(text)


def test_a_page_is_small(text):
    assert len(text.encode()) < 300_000


def test_nothing_outside_is_named(text, tree):
    for _, attributes, _ in tree.elements:
        for key in ("src", "href", "srcset", "action", "poster", "data", "xlink:href", "style"):
            assert attributes.get(key, "data:,") == "data:,"
        assert not [key for key in attributes if key.startswith("on")]
    assert not re.search(r"url\(|@import|@font-face", CSS)
    (script,) = [data for name, data in tree.texts if name == "script"]
    assert not re.search(r"fetch|XMLHttp|import\(|WebSocket|sendBeacon|innerHTML|eval\(", script)
    assert set(re.findall(r"https?://[^\"' ]+", script)) == {"http://www.w3.org/2000/svg"}


def test_what_the_user_wrote_is_text_and_never_code(tree):
    names = {tag for tag, _, _ in tree.elements}
    assert not names & {"img", "iframe", "object", "embed", "form", "b"}
    assert len(tree.all("script")) == len(tree.all("style")) == 1


def test_nasty_words_are_shown_as_they_are():
    shown = Tree(page(PAGES["nasty"])).texts
    for word in page_samples.NASTY:
        seen = re.sub(r"[\x00\x07\ud800]", "\ufffd", word)
        assert any(data == seen for _, data in shown), word


def test_labels_roles_and_headings(tree):
    ids = [a["id"] for _, a, _ in tree.elements if "id" in a]
    assert len(set(ids)) == len(ids)
    for _, attributes, _ in tree.elements:
        for key in ("aria-labelledby", "aria-describedby"):
            assert attributes.get(key, ids[0]) in ids
    for tag, _, above in tree.elements:
        if tag == "input":
            assert "label" in above
            assert "fieldset" in above
    for plot in tree.all("svg"):
        assert plot.get("role") == "img" or "curves" in plot["class"] or plot["aria-hidden"]
    tables = len(tree.all("table"))
    assert tables == len(tree.all("caption"))
    assert all(a.get("scope") in ("row", "col") for a in tree.all("th"))
    for attributes in (a for _, a, _ in tree.elements if "tabindex" in a):
        assert attributes["role"] == "region"
        assert attributes["aria-label"]
    assert [tag for tag, _, _ in tree.elements if tag in ("h1", "h3")] == ["h1"]
    assert tree.all("html") == [{"lang": "en"}]


def test_controls_are_hidden_until_the_script_shows_them(tree):
    for _, attributes, _ in tree.elements:
        if "data-script" in attributes:
            assert "hidden" in attributes
    radios = [a for a in tree.all("input") if a["type"] == "radio"]
    for name in {a["name"] for a in radios}:
        assert sum("checked" in a for a in radios if a["name"] == name) == 1


def test_a_page_says_all_that_it_was_given():
    words = " ".join(data for _, data in Tree(page(PAGES["ordinary"])).texts)
    data = PAGES["ordinary"]
    for expected in (data.title, data.summary, data.verdict, *data.warnings, *data.commands):
        assert expected in words
    for expected in ("100, with 3 to 400 rows", "seed = 3", "isfed 0.1.0", "models uploaded"):
        assert expected in words
    assert "Curves of up to 3,000 points are drawn with 300" in words


def numbers(text: str) -> list[float]:
    return [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?", text)]


@pytest.mark.parametrize("logarithmic", [False, True])
def test_a_curve_is_drawn_where_its_numbers_are(logarithmic):
    x, y = np.array([1.0, 5.0, 9.0, 10.0]), np.array([100.0, 10.0, 0.5, 1.0])
    series = Series("a", x, y, 0.5 * y, 2.0 * y, units={"rounds": 1.0})
    table = PageTable("t", ("method",), ((TableCell("a"),),))
    figure = Figure("f", "y", {"rounds": "rounds"}, (series,), table, logarithmic=logarithmic)
    found = Tree(page(page_samples.PageData("t", "s", "v", figures=(figure,))))
    kind = "log" if logarithmic else "linear"
    (group,) = [a for a in found.all("g") if a.get("class") == kind]
    a, _, _, d, e, f = numbers(group["transform"])
    lines = [at for tag, at, up in found.elements if at.get("class") == "line"]
    way = np.array(numbers(lines[int(logarithmic)]["d"])).reshape(-1, 2).cumsum(axis=0)
    # What is drawn against the ticks, which say where numbers are.
    ticks = [
        (attrs["y"], data)
        for attrs, data in zip(
            [at for tag, at, up in found.elements if tag == "text"],
            [data for name, data in found.texts if name == "text"],
            strict=True,
        )
        if attrs["x"] == "0"
    ]
    (one, low), (other, high) = ticks[0], ticks[-1]
    levels = np.array([float(v.replace("k", "e3")) for v in (low, high)])
    places = 10.0 * np.array([float(v.rstrip("%")) for v in (one, other)])
    shown = np.log10(y) if logarithmic else y
    levels = np.log10(levels) if logarithmic else levels
    expected = places[0] + (shown - levels[0]) * np.diff(places) / np.diff(levels)
    assert a * way[:, 0] + e == pytest.approx(100.0 * x, abs=0.5)
    assert d * way[:, 1] + f == pytest.approx(expected, abs=0.5)


def colours(text: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", text))


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255.0 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_known_for_black_on_white():
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)


@pytest.mark.parametrize("media", ["light", "dark", "print"])
def test_every_text_and_curve_stands_out(media):
    blocks = re.findall(r":root \{(.*?)\}", CSS, flags=re.DOTALL)
    found = colours(blocks[0]) | colours(blocks[["light", "dark", "print"].index(media)])
    for name in ("text", "soft", "focus", *(f"c{i}" for i in range(8))):
        assert contrast(found[name], found["back"]) >= 4.5, (media, name)
    assert contrast(found["text"], found["panel"]) >= 4.5
    assert contrast(found["warn"], found["warn-back"]) >= 4.5


def test_curves_can_be_told_apart_in_grey():
    dashes = re.findall(r"--d: ([^;]+);", CSS)
    assert len(set(dashes)) == len(dashes) == 8
    found = Tree(page(PAGES["ordinary"]))
    styles = [a["class"].split()[2] for a in found.all("g") if "series" in a.get("class", "")]
    assert styles[:5] == [f"d{i}" for i in range(5)]


def test_records_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match="a row of 1 cells under 2 headings"):
        PageTable("t", ("a", "b"), ((TableCell("1"),),))
    x = np.arange(3.0)
    with pytest.raises(ValueError, match="differ in length"):
        Series("a", x, x, x, x[:2])
    table = PageTable("t", ("a",), ())
    with pytest.raises(ValueError, match="no positive unit for the axis 'uploads'"):
        Figure("f", "y", {"uploads": "uploads"}, (Series("a", x, x, x, x),), table)


def test_sentences_about_the_data_are_a_list():
    lines = ("3 rows of 2 agents.", "Measured (1): <x>")
    text = page(
        page_samples.PageData(
            "t", "s", "v", advice=("Try 0.1.",), data=tuple(("", x) for x in lines)
        )
    )
    assert "<li>3 rows of 2 agents.</li><li>Measured (1): &lt;x&gt;</li>" in text.replace("\n", "")
    assert "<p>Try 0.1.</p>" in text


def test_the_answer_comes_first_and_what_to_do_next_before_the_figures():
    data = PageData(
        "t", "What was run.", "Use `Average`.", advice=("See `isfed compare`.",),
        next_steps=(("Type <this>:", "isfed run 'a b'"),), warnings=("Mind `it`.",),
        data=(("", "The file `f`."),), configurations={"config.toml": "a = `b`"},
    )  # fmt: skip
    text = page(data)
    body = text[text.index("<body>") : text.index("<script>")]
    order = [
        "<h1>t</h1>", "Use <code>Average</code>.", "What was run.",
        "See <code>isfed compare</code>.", "Mind <code>it</code>.", "What to do next",
        "Type &lt;this&gt;:", "isfed run &#x27;a b&#x27;", "The file <code>f</code>.",
    ]  # fmt: skip
    places = [body.index(words) for words in order]
    assert places == sorted(places)
    prose, _, configuration = body.partition("<details")
    assert "`" not in prose  # only a file is shown as it is
    assert "a = `b`" in configuration


def test_the_configuration_is_folded():
    data = PageData("t", "s", "v", configurations={"config.toml": "a = 1"})
    assert "<details><summary>config.toml</summary>" in page(data)


def test_a_table_can_be_folded():
    tables = tuple(
        PageTable(name, ("a",), ((TableCell("1", 1.0),),), folded=name == "small print")
        for name in ("main", "small print")
    )
    text = page(PageData("t", "s", "v", tables=tables))
    assert text.count("<details>") == 1
    assert "<h2>small print</h2><details><summary>1 row</summary>" in text
