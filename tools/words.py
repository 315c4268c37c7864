"""How long the documents are: words per page, and sentences that are too long to read at once.

python tools/words.py [--all] exits with 1 if a page has more than 2 000 words, a sentence more than
30, or a version in the changelog more than 400. Code does not count, and neither do appendices,
which hold tables that commands make.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MOST_WORDS, LONGEST_SENTENCE, MOST_OF_A_VERSION = 2000, 30, 400
SPECIAL = {"CONTRIBUTING.md": 800}
CODE = re.compile(r"^( *)```.*?^\1```|<!--.*?-->", re.M | re.S)
BREAK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*#>|]|\d+\.) )|\|")  # paragraphs, list items, table cells
SENTENCE = re.compile(r"(?<=[.!?:;])[\"')*`]*\s+(?=[A-Z`*(\"\[0-9])")


def words(text: str) -> list[str]:
    """What a reader would count as words: links by their text, signs not at all."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`]*`", "code", text)
    return [word for word in text.split() if re.search(r"\w", word)]


def sentences(text: str) -> list[str]:
    """The sentences of a page, without its code."""
    blocks = [" ".join(block.split()) for block in BREAK.split(text)]
    return [sentence for block in blocks for sentence in SENTENCE.split(block)]


def long_versions(changelog: str) -> list[str]:
    """The versions about which the changelog says too much."""
    versions = re.split(r"^(?=## )", changelog, flags=re.M)[1:]
    counts = {version.split("\n", 1)[0]: len(words(version)) for version in versions}
    return [
        f"CHANGELOG.md, {name}: {count} words (at most {MOST_OF_A_VERSION})"
        for name, count in counts.items()
        if count > MOST_OF_A_VERSION
    ]


def main() -> int:
    """One line for each page that is too long, and its longest sentences; all pages with --all."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    versions = long_versions((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    print("".join(f"{line}\n" for line in versions), end="")
    wrong = len(versions)
    for path in sorted(pages):
        name = str(path.relative_to(ROOT))
        if "appendix" in name or name in ("CHANGELOG.md", "CODE_OF_CONDUCT.md"):
            continue
        text = CODE.sub("", path.read_text(encoding="utf-8"))
        count, most = len(words(text)), SPECIAL.get(name, MOST_WORDS)
        long = [s for s in sentences(text) if len(words(s)) > LONGEST_SENTENCE]
        bad = count > most or bool(long)
        wrong += bad
        if bad or "--all" in sys.argv:
            print(f"{name}: {count} words (at most {most}), {len(long)} sentences over 30 words")
            for sentence in long:
                print(f"    {len(words(sentence))} words: {sentence}")
    print(f"{wrong} of {len(pages)} pages are too long or have sentences over {LONGEST_SENTENCE}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
