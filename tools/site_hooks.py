"""What the site makes itself: pages from the command line, the registry and the notebooks."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # MkDocs runs this file by its path

from mkdocs.structure.files import File, Files
from site_notebooks import notebook_page
from site_pages import api_pages, commands_page, keys_page

ROOT = Path(__file__).parents[1]
OUTSIDE = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md",
           "SECURITY.md": "security.md", "CODE_OF_CONDUCT.md": "conduct.md"}  # fmt: skip
EXAMPLES = {
    name: f"example-{name}.md" for name in ("flower", "flower-torch", "flower-lora")
}  # each with its app, and a diff if it shows a change


def on_config(config: Any) -> Any:
    """A page that the navigation does not name goes to the studies, under its own title."""
    named = str(config.nav)
    studies = next(entry["Studies"] for entry in config.nav if "Studies" in entry)
    for path in sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "appendix").glob("*.md")]):
        name = path.relative_to(ROOT / "docs").as_posix()
        if f"'{name}'" not in named:
            title = path.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ")
            studies.append({title: name})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made, and those that live at the root of the repository."""
    pages = {
        **api_pages(),
        "reference/commands.md": commands_page(),
        "reference/toml.md": keys_page(),
    }
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        pages[f"notebooks/{path.stem}.md"] = notebook_page(path)
        if (there := files.get_file_from_path(f"notebooks/{path.name}")) is not None:
            files.remove(there)
    for name, page in OUTSIDE.items():
        pages[page] = _moved((ROOT / name).read_text(encoding="utf-8"))
    for name, page in EXAMPLES.items():
        pages[page] = example_page(ROOT / "examples" / name)
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def example_page(folder: Path) -> str:
    """What an example says of itself, the change that it shows, and the whole app."""
    text = (folder / "README.md").read_text(encoding="utf-8").rstrip()
    for name, page in EXAMPLES.items():
        text = text.replace(f"](../{name}/README.md)", f"]({page})")
    parts = [
        re.sub(r"\[docs/(\w+\.md)\]\(\.\./\.\./docs/(\w+\.md)\)", r"[My federation](\2)", text)
    ]
    if (change := folder / "change.diff").exists():
        parts += ["## The change", f"```diff\n{change.read_text(encoding='utf-8').rstrip()}\n```"]
    parts.append("## The whole app")
    app = folder / "after" if change.exists() else folder
    for path in sorted(app.rglob("*")):
        if path.suffix in (".py", ".toml") and (text := path.read_text(encoding="utf-8").rstrip()):
            language = {".py": "python", ".toml": "toml"}[path.suffix]
            parts.append(f"`{path.relative_to(folder).as_posix()}`:\n\n```{language}\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links from docs/ to files of the repository: to their pages, or else as their paths."""
    up = "../" * page.file.src_uri.count("/")
    for name, target in EXAMPLES.items():
        markdown = re.sub(
            rf"\]\((\.\./)+examples/{name}/README\.md\)", f"]({up}{target})", markdown
        )
    for name, target in OUTSIDE.items():
        markdown = re.sub(rf"\]\((\.\./)+{re.escape(name)}", f"]({up}{target}", markdown)
    return re.sub(
        r"\[([^]]+)\]\((?:\.\./)+((?:examples|benchmarks|src|tests)/[^)]+)\)",
        r"\1 (`\2`)",
        markdown,
    )


def _moved(text: str) -> str:
    """Links from the root of the repository, as links between the pages of the site."""
    text = text.replace("](docs/", "](")
    for name, page in OUTSIDE.items():
        text = text.replace(f"]({name}", f"]({page}")
    return text
