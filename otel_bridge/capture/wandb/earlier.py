"""Saves and restores config, summary and step for a program that resumes its run, in a file in the run folder.

W&B gives them from its server. Here each process saves what it has given, at most every 10 s and at
its end, without secrets. A folder on another machine holds no such file: its run is resumed without
them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import orjson

from otel_bridge.emit.config.hyperparameters import config_of
from otel_bridge.emit.run import Run
from otel_bridge.errors import any_error_but_signals
from otel_bridge.journal.files import read_regular
from otel_bridge.journal.folder import put_file
from otel_bridge.journal.report import read_report
from otel_bridge.records import axis_of
from otel_bridge.text.secret_patterns import REDACTED
from otel_bridge.values.plain import count_nothing

_FILE = "captured.json"
_MAX_BYTES = 64 << 20
"""Most bytes that are read; a larger file counts as missing."""
_EVERY_S = 10.0
"""Least seconds between two writes of the whole file."""
_CONFIG = "config"
_SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """Holds what a resumed run had before.

    Attributes:
        config: Its config, without secrets.
        summary: Its last values.
        step: The step after its last one; ``None`` when no row was delivered.
    """

    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    summary: Mapping[str, Any] = field(default_factory=dict[str, Any])
    step: int | None = None


def earlier_run(run: Run) -> EarlierRun | None:
    """Return what is known of *run* from before this process; ``None`` when it is a new one.

    Its last step comes from the report, which counts rows of all its processes that were delivered;
    config and summary from the file of this module, empty where that is missing or damaged.
    """
    recorder = run.recorder
    if recorder is None:
        return None
    report = read_report(recorder.folder)
    saved = _read(recorder.folder.path / _FILE)
    last = None if report is None else report.steps.get(axis_of(run.role))
    if last is None and not any(saved.values()):
        return None
    return EarlierRun(
        _plain(saved[_CONFIG]),
        _plain(saved[_SUMMARY]),
        None if last is None else last + 1,
    )


class SavedRun:
    """Saves what a process gives to its run.

    A file of its own: segments, which hold the same, may be deleted once they are delivered.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._path = None if run.recorder is None else run.recorder.folder.path / _FILE
        self._config: dict[str, Any] = {}
        self._due = 0.0

    def save(
        self,
        summary: Mapping[str, Any],
        config: Mapping[str, Any] | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        """Save *summary* and changed entries of the config, unless that was done a moment ago.

        A full disk, or a value of the program that raises, costs only the file.

        What other processes of the run have saved stays, and the later value of a key counts. Only
        every 10 s, since the file is read and written as a whole.
        """
        self._config.update(config or {})
        if self._path is None or (time.monotonic() < self._due and not at_once):
            return
        values_by_part = {_CONFIG: self._config, _SUMMARY: summary}
        try:  # what other processes of the run saved stays
            earlier_parts = _read(self._path)
            merged_parts = {
                part: earlier_parts[part] | config_of(values, count_nothing)
                for part, values in values_by_part.items()
            }
            put_file(
                self._path, orjson.dumps(merged_parts, option=orjson.OPT_NON_STR_KEYS)
            )
        except any_error_but_signals():  # values of the user's, or the disk
            pass
        self._due = time.monotonic() + _EVERY_S


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Return config and summary of the file.

    Empty where it is missing, over 64 MiB, or in another form.
    """
    parts: dict[str, dict[str, Any]] = {_CONFIG: {}, _SUMMARY: {}}
    try:
        content: Any = orjson.loads(read_regular(path, _MAX_BYTES))
    except (OSError, ValueError):
        return parts
    if isinstance(content, dict):
        for part in parts:
            entries = cast("dict[str, Any]", content).get(part)
            if isinstance(entries, dict):
                parts[part] = entries
    return parts


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return *values* without those that were redacted, also within nested dicts.

    A resumed program would take the text in place of a secret for the value.
    """
    plain: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            plain[key] = _plain(cast("dict[str, Any]", value))
        elif not (isinstance(value, str) and REDACTED in value):
            plain[key] = value
    return plain
