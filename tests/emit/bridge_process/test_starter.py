"""Who delivers when a process ends, and what its last line says of the rest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from otel_bridge.emit.bridge_process import starter
from otel_bridge.emit.bridge_process.starter import BridgeStarter
from otel_bridge.emit.console import rest_is_kept
from otel_bridge.errors import JournalError
from otel_bridge.journal.folder import RunFolder


def _loads(folder: RunFolder) -> None:
    folder.log_path.touch()


def _ends_at_once(folder: RunFolder) -> None:
    folder.log_path.write_text("the ledger is of a newer version\n")


def _cannot_start(folder: RunFolder) -> None:
    raise JournalError("no interpreter")


def _holds_the_lock(folder: RunFolder) -> None:
    _ends_at_once(folder)
    lock = folder.lock()
    assert lock.acquire()


@pytest.mark.parametrize(
    ("bridge", "hold", "expected"),
    [
        (_loads, False, "bridge"),
        (_holds_the_lock, False, "bridge"),
        (_ends_at_once, False, None),
        (_cannot_start, False, None),
        (_loads, True, None),
    ],
)
def test_a_bridge_that_loads_or_works_goes_on_and_one_that_ended_does_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bridge: Callable[[RunFolder], None],
    hold: bool,
    expected: str | None,
) -> None:
    folder = RunFolder(tmp_path, "run0000000000001")
    folder.create()

    def start(started: RunFolder, _env: object, python: object = None) -> None:
        bridge(started)

    def held(_path: Path) -> bool:  # a lock of this process itself would not be seen
        return bridge is _holds_the_lock

    monkeypatch.setattr(starter, "start_bridge", start)
    monkeypatch.setattr(starter, "_LOCK_S", 0.05)
    monkeypatch.setattr(starter, "probe", held)
    keeper = BridgeStarter(folder, {}, hold=hold)

    if bridge is not _holds_the_lock:
        keeper.ensure()

    assert keeper.goes_on() == expected


def test_the_last_line_says_who_goes_on_and_names_drain_only_where_nobody_does() -> (
    None
):
    folder = RunFolder(Path("/a b"), "0123456789abcdef")

    said = [
        rest_is_kept(folder, by, chosen=True) for by in ("bridge", "launcher", None)
    ]

    assert said == [
        "a process in the background continues to deliver the rest; watch it with: otel-bridge status --watch '/a b'",
        "`otel-bridge run` continues to deliver the rest; watch it with: otel-bridge status --watch '/a b'",
        "undelivered records are kept; deliver them with: otel-bridge drain '/a b'",
    ]
    unchosen = rest_is_kept(folder, None, chosen=False)
    assert unchosen.endswith(
        "deliver them with: otel-bridge drain --exporters trackio '/a b/0123456789abcdef'"
    )
