"""Folders of a single result: never mixed with anything else, never replaced unasked."""

from __future__ import annotations

from pathlib import Path

from isfed.experiments.store import StoreError

WRITTEN = {
    "comparison": ("history.parquet", "comparison.png", "comparison.svg", "summary.json"),
    "diagnosis": ("diagnosis.json", "inclusion.png", "inclusion.svg"),
}


def check_free(folder: Path, kind: str, *, overwrite: bool) -> None:
    """Refuse a folder of something else, and one of an earlier result if it is to stay."""
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"cannot write to {folder}: it is not a folder")
    names = {path.name for path in folder.glob("*")} - {".lock"}
    others = sorted(names.difference(WRITTEN[kind]))
    if others:
        raise StoreError(
            f"{folder} holds files that are not of a {kind} ({others[0]}); choose another --out"
        )
    if names and not overwrite:
        raise StoreError(
            f"{folder} already holds a {kind}; --overwrite replaces it, --out names another folder"
        )
