"""Finds the run folders that a command means, and says so when there are none.

`os.path.isdir` and not `Path.is_dir`, which raises `PermissionError` (before Python 3.14): a folder
that this user may not read is one that is not there, with one line that says so.
"""

from __future__ import annotations

import os
from pathlib import Path

from otel_bridge import settings
from otel_bridge.cli.errors import WrongCallError
from otel_bridge.cli.terminal import echo
from otel_bridge.journal.base_dir import base_dir
from otel_bridge.journal.folder import RunFolder, run_folders
from otel_bridge.journal.header import SegmentHeader
from otel_bridge.journal.report import read_report
from otel_bridge.journal.segment import header_in
from otel_bridge.text.counts import first_ones

_NAME_ANOTHER = "pass the folder that holds run folders, or set OTEL_BRIDGE_DIR"
_RUNS_NAMED = 20
"""Most runs that a message lists: a directory may hold thousands."""
_HEADERS_READ = 8
"""Segments whose headers are read: processes of a run rarely differ in exporters."""


def folders_of(directory: Path | None) -> list[RunFolder]:
    """Return the run folders of *directory*, or *directory* itself when it is a run folder.

    If it has none, and one directory in it has, like ``runs`` in the demo's directory, those are
    returned. Empty without any, also if *directory* does not exist. ``None``: ``OTEL_BRIDGE_DIR``,
    or its default.

    Raises:
        ConfigError: The environment names a directory whose name is not UTF-8.
    """
    base = (
        base_dir(settings.environment(), Path.cwd()) if directory is None else directory
    )
    # The call names a run folder itself.
    if os.path.isdir(base / "segments"):
        return [RunFolder.at(base.resolve())]
    folders = run_folders(base)
    if folders:
        return folders
    below = _directories_with_runs(base)
    # Of several it is unknown which one is meant; the message then names them.
    if len(below) == 1:
        return run_folders(below[0])
    return []


def existing_folders(directory: Path | None, run: str | None = None) -> list[RunFolder]:
    """Return `folders_of` *directory*; when there are none, print that.

    Args:
        directory: Directory that the call names; ``None`` for the one of the environment, in which
            having no run yet is not an error.
        run: Run that the call names; ``None`` when it names none.

    Raises:
        WrongCallError: There are none, and the call names the directory or a run.
        ConfigError: As in `folders_of`.
    """
    folders = folders_of(directory)
    if folders:
        return folders
    message = _no_run_folder(directory or base_dir(settings.environment(), Path.cwd()))
    if directory is not None or run is not None:
        raise WrongCallError(message)
    echo(message, err=True)
    return []


def chosen_folders(directory: Path | None, run: str | None) -> list[RunFolder]:
    """Return the run folders of *directory*, or those of the *run*: a name, an id, or its beginning.

    A beginning counts only where nothing is equal, and may match several: see `only_one`.

    When the directory of the environment has no run, that is printed, and nothing is returned.

    Raises:
        WrongCallError: *run* is empty, or the call names a folder or a run that is not there; the
            message lists the runs that exist.
        ConfigError: As in `folders_of`.
    """
    # An empty name would match every id, and some commands delete.
    if run is not None and not run.strip():
        raise WrongCallError(
            "RUN is empty, perhaps because a variable is not set; give the name or the id of a run"
        )
    folders = existing_folders(directory, run)
    if run is None or not folders:
        return folders
    exact: list[RunFolder] = []
    by_beginning: list[RunFolder] = []
    runs: list[str] = []
    for folder in folders:
        name = _name_of(folder)
        runs.append(f"{name} ({folder.run_id})" if name else folder.run_id)
        if run in {name, folder.run_id}:
            exact.append(folder)
        elif folder.run_id.startswith(run):
            by_beginning.append(folder)
    if not exact and not by_beginning:
        raise WrongCallError(
            f"{folders[0].base}: no run {run!r} here; there are {first_ones(runs, _RUNS_NAMED)}"
        )
    return exact or by_beginning


def only_one(folders: list[RunFolder]) -> list[RunFolder]:
    """Return *folders*, which the call of a command for one run has chosen.

    Raises:
        WrongCallError: They are several; the message lists them.
    """
    if len(folders) > 1:
        names = first_ones([folder.run_id for folder in folders], _RUNS_NAMED)
        raise WrongCallError(f"{len(folders)} runs match; name one of {names}")
    return folders


def headers_of(folder: RunFolder) -> list[SegmentHeader | None]:
    """Return the headers of the first segments of *folder*, ``None`` for an unreadable one."""
    return [header_in(segment.path) for segment in folder.segments()[:_HEADERS_READ]]


def _name_of(folder: RunFolder) -> str:
    """Return the name of a run.

    Without a report, as of an offline run, that of its first process.
    """
    report = read_report(folder)
    if report is not None:
        return report.name
    for header in filter(None, headers_of(folder)):
        return header.run_name
    return ""


def _directories_with_runs(base: Path) -> list[Path]:
    """Return the directories in *base* that have run folders; empty if *base* does not exist."""
    if os.path.isdir(base):
        return [path for path in sorted(base.glob("*/")) if run_folders(path)]
    return []


def _no_run_folder(base: Path) -> str:
    """Return the message that *base* has no run folder, with what to name instead."""
    if not os.path.isdir(base):
        return f"{base}: no such folder; {_NAME_ANOTHER}"
    names = ", ".join(path.name for path in _directories_with_runs(base))
    advice = (
        f"they are in several folders below: {names}; pass one of them"
        if names
        else _NAME_ANOTHER
    )
    return f"{base}: no run folder here; {advice}"
