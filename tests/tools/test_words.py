"""tools/words.py counts what a reader reads, and the documents keep its limits."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import words  # pyright: ignore[reportMissingImports]


def test_links_count_by_their_text_and_code_as_one_word():
    assert words.words("See [the page](a/b.md) and `isfed run FILE`.") == [
        "See", "the", "page", "and", "code.",
    ]  # fmt: skip


def test_list_items_and_cells_are_sentences_of_their_own():
    text = "- One item\n- another\n\n| a cell | one more |\n\nEnd. Begin again"
    found = [sentence for sentence in words.sentences(text) if sentence.strip()]
    assert found == ["- One item", "- another", "a cell", "one more", "End.", "Begin again"]


def test_a_long_version_of_the_changelog_is_named():
    text = "# Changelog\n\n## [2] new\n" + "word " * 401 + "\n## [1]\nshort\n"
    (line,) = words.long_versions(text)
    assert line.startswith("CHANGELOG.md, ## [2] new: ")


def test_the_documents_can_be_read(capsys):
    assert words.main() == 0, capsys.readouterr().out
