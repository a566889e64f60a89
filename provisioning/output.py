"""The rendered tree: what the targets write, what differs on disk, and the writing, all or nothing.

A file is ours if it says so: by the header of generated files, or in JSON by the tag of a board that is named like its
file. Nothing else in the tree is ever touched.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioning.bundle import Bundle
from provisioning.errors import ProvisioningError
from provisioning.targets import grafana, grafana_alerts, prometheus
from provisioning.targets.yaml_text import HEADER

TARGETS: tuple[Callable[[Bundle], dict[str, str]], ...] = (grafana.render, grafana_alerts.render, prometheus.render)

FOLDERS = ("grafana", "prometheus")
"""Folders of the tree in which generated files lie; nothing is looked for elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Changes:
    """How a rendered tree differs from what is on disk; paths, sorted."""

    new: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    removed: tuple[str, ...]

    @property
    def none(self) -> bool:
        """Whether the disk has the rendered tree already."""
        return not (self.new or self.changed or self.removed)


def render(bundle: Bundle) -> dict[str, str]:
    """Every file of every target, by its path under the output root.

    Raises: ProvisioningError if two targets write one file, or one writes outside of its folder.
    """
    files: dict[str, str] = {}
    for target in TARGETS:
        for path, text in target(bundle).items():
            if path in files:
                raise ProvisioningError(f"provisioning.output: {path!r} must be written by one target (got two).")
            if path.split("/")[0] not in FOLDERS or ".." in path.split("/"):
                raise ProvisioningError(f"provisioning.output: a path must begin with one of {FOLDERS} (got {path!r}).")
            files[path] = text
    return files


def read(root: Path) -> dict[str, str]:
    """The text of every file in the tree, by its path under the root.

    Raises: ProvisioningError if one cannot be read.
    """
    texts = {}
    for file in sorted(file for folder in FOLDERS for file in (root / folder).rglob("*") if file.is_file()):
        try:
            texts[file.relative_to(root).as_posix()] = file.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise ProvisioningError(f"{file}: must be readable (got this: {error.strerror}).") from error
    return texts


def is_ours(path: str, text: str) -> bool:
    """Whether a file in the tree was generated here."""
    if not path.endswith(".json"):
        return text.startswith(HEADER.rstrip("\n"))
    if grafana.GENERATED_TAG not in text:
        return False
    try:
        board = json.loads(text)
    except ValueError:
        return False
    return isinstance(board, dict) and Path(path).stem == board.get("uid")


def compare(files: Mapping[str, str], on_disk: Mapping[str, str]) -> Changes:
    """What writing the files would do.

    Raises: ProvisioningError if a file of somebody else is in the way.
    """
    foreign = sorted(path for path in files if path in on_disk and not is_ours(path, on_disk[path]))
    if foreign:
        raise ProvisioningError(
            "\n".join(f"{path}: must be a file that was generated here. Move it or delete it." for path in foreign)
        )
    return Changes(
        new=tuple(sorted(path for path in files if path not in on_disk)),
        changed=tuple(sorted(path for path in files if path in on_disk and files[path] != on_disk[path])),
        unchanged=tuple(sorted(path for path in files if files[path] == on_disk.get(path))),
        removed=tuple(sorted(path for path in on_disk if path not in files and is_ours(path, on_disk[path]))),
    )


def write(root: Path, files: Mapping[str, str], changes: Changes) -> None:
    """Bring the disk to the rendered tree: first every new text beside its place, then all into place.

    Raises: ProvisioningError if the tree cannot be written; then it is as before.
    """
    waiting: list[tuple[Path, Path]] = []
    try:
        for path in (*changes.new, *changes.changed):
            place = root / path
            place.parent.mkdir(parents=True, exist_ok=True)
            beside = place.with_name(f".{place.name}.{os.getpid()}.tmp")
            waiting.append((beside, place))
            beside.write_text(files[path], encoding="utf-8", newline="\n")
        for beside, place in waiting:
            beside.replace(place)
        for path in changes.removed:
            (root / path).unlink(missing_ok=True)
    except OSError as error:
        raise ProvisioningError(f"{error.filename}: must be writable (got this: {error.strerror}).") from error
    finally:
        for beside, _ in waiting:
            beside.unlink(missing_ok=True)
