"""The files around the code agree with each other."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


MADE = {  # pages that the site makes itself
    ROOT / "docs" / "reference" / name for name in ("index.md", "commands.md", "toml.md")
}


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_the_same_everywhere():
    cited = re.search(r"^version: (\S+)$", text("CITATION.cff"), re.M)
    assert cited
    assert cited[1] == PROJECT["version"]
    assert f"## [{PROJECT['version']}]" in text("CHANGELOG.md")
    assert f"isfed-{PROJECT['version']}-py3-none-any.whl" in text("docs/deploy.md")


def test_the_lowest_versions_are_pinned_as_promised():
    lines = "\n".join(PROJECT["dependencies"])
    promised = dict(re.findall(r"^([\w-]+)>=([\d.]+)", lines, re.M))
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+)$", text("requirements-lowest.txt"), re.M))

    def padded(version: str) -> list[str]:
        return [*version.split("."), "0", "0"][:3]

    assert {name: padded(v) for name, v in pinned.items()} == {
        name: padded(v) for name, v in promised.items()
    }


def test_every_target_that_the_documents_name_exists():
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.M))
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / ".github/workflows/ci.yml"]
    for path in documents:
        content = path.read_text(encoding="utf-8")
        named = re.findall(r"(?:`|^|run: )make ([a-z-]+)", content, re.M)
        assert set(named) <= targets, f"{path.name}: {set(named) - targets}"


def test_the_workflow_runs_the_supported_versions_of_python():
    named = set(re.findall(r'"(3\.\d+)"', text(".github/workflows/ci.yml")))
    assert named == {"3.11", "3.12", "3.13"}
    assert PROJECT["requires-python"] == ">=3.11,<3.14"


def test_links_between_documents_lead_somewhere():
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            if not target.startswith(("http://", "https://", "mailto:")):
                there = (path.parent / target).resolve()
                assert there.exists() or there in MADE, f"{path.name} links to {target}"
