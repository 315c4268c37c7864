"""Notebooks as pages of the site, and the command that runs them.

python tools/site_notebooks.py          runs every notebook and writes its outputs into it
"""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path
from typing import Any

import nbformat

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
SECONDS = 600  # of one cell: a limit, not a measurement


def run_notebook(path: Path) -> Any:
    """The notebook after all its cells have run, in order, in a fresh process."""
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.metadata.clear()
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    # Threads of PyTorch that wait for each other take ten times as long on a busy machine.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    resources = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=resources)
    client.execute()
    for cell in notebook.cells:
        cell.metadata.clear()  # when it ran is nobody's business
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}}
    )
    return notebook


def printed(cell: Any) -> str:
    """What a cell shows as text."""
    texts = []
    for output in cell.get("outputs", []):
        if output.output_type == "stream" and output.name == "stdout":
            texts.append(output.text)
        elif "data" in output and not _images(output):
            texts.append(output.data.get("text/plain", "") + "\n")
    return "".join(texts)


def _images(output: Any) -> list[str]:
    found = []
    for kind in ("image/svg+xml", "image/png"):
        content = output.get("data", {}).get(kind)
        if content is not None:
            packed = content if kind == "image/png" else base64.b64encode(content.encode()).decode()
            found.append(f"![figure](data:{kind};base64,{packed.strip()})")
            break
    return found


def notebook_page(path: Path) -> str:
    """The notebook, with the outputs that it holds, as Markdown."""
    parts = []
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        if text := printed(cell).rstrip():
            parts.append(f"```text\n{text}\n```")
        parts += [image for output in cell.outputs for image in _images(output)]
    parts.append(f"*Made from `docs/notebooks/{path.name}`, which the tests run.*")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Run the notebooks that are named, or all of them."""
    for path in map(Path, sys.argv[1:] or sorted(map(str, FOLDER.glob("*.ipynb")))):
        print(f"running {path.name}")
        nbformat.write(run_notebook(path), path)


if __name__ == "__main__":
    main()
