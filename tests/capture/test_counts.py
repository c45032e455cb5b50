"""Counts of captured calls: of every process, kept through a kill, bounded."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from otel_bridge.capture.counts import CallCounts, totals_in
from otel_bridge.cli.run.capture_table import CaptureTable
from otel_bridge.cli.terminal import Terminal


def terminal_of_80_columns() -> Terminal:
    terminal = Terminal()
    terminal.width = 80
    return terminal


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OTEL_BRIDGE_CAPTURE_COUNTS", str(tmp_path))
    return tmp_path


def test_counts_of_all_processes_are_added_up_and_a_kill_loses_none(
    folder: Path,
) -> None:
    counts = CallCounts()
    counts.captured("wandb.log", 2)
    child = os.fork()
    if child == 0:
        counts.begin()
        for _ in range(3):
            counts.captured("wandb.log")
        counts.not_captured("wandb.Image")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)

    totals = totals_in(folder)

    assert (totals.captured, totals.not_captured) == (
        {"wandb.log": 5},
        {"wandb.Image": 1},
    )
    assert totals.processes == 2


def test_a_call_of_a_signal_handler_inside_another_is_counted_and_does_not_hang(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = CallCounts()
    real_write = os.pwrite
    signals = [signal.SIGUSR1]

    def write(file: int, data: bytes, offset: int) -> int:
        while signals:
            signal.raise_signal(signals.pop())
        return real_write(file, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    previous = signal.signal(
        signal.SIGUSR1, lambda *_: counts.not_captured("wandb.run.mark_preempting")
    )
    try:
        counts.captured("wandb.log")
    finally:
        signal.signal(signal.SIGUSR1, previous)

    totals = totals_in(folder)
    assert (totals.captured, totals.not_captured, totals.processes) == (
        {"wandb.log": 1},
        {"wandb.run.mark_preempting": 1},
        1,
    )


def test_calls_beyond_the_size_of_the_file_are_counted_together(folder: Path) -> None:
    counts = CallCounts()

    for number in range(1_000):
        counts.captured(f"call {number}")
        counts.not_captured("é" * 100 + str(number % 2))

    totals = totals_in(folder)
    assert sum(totals.captured.values()) == 1_000
    assert sum(totals.not_captured.values()) == 1_000
    assert max(path.stat().st_size for path in folder.iterdir()) < 32_768


@pytest.mark.parametrize(
    "content", [b"", b"\x01", b"\xff" * 32_768, b'[{"wandb.log":1},{"wan']
)
def test_other_files_in_the_folder_count_nothing(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "other").write_bytes(content)
    (tmp_path / "folder").mkdir()

    assert totals_in(tmp_path).captured == {}
    assert totals_in(tmp_path / "missing").processes == 0


@pytest.mark.parametrize("made", ["", "/nowhere/at/all"])
def test_without_a_folder_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    monkeypatch.setenv("OTEL_BRIDGE_CAPTURE_COUNTS", made)

    CallCounts().captured("wandb.log")


def test_the_table_shows_both_sides_bounded_and_its_folder_is_removed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = CaptureTable({"OTEL_BRIDGE_CAPTURE": "wandb"})
    for name, value in table.environment.items():
        monkeypatch.setenv(name, value)
    counts = CallCounts()
    counts.captured("wandb.log", 1_200)
    for number in range(25):
        counts.not_captured(f"call\x1b[{number:02}")

    table.show(terminal_of_80_columns())

    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["call", "captured", "not", "captured"], ["wandb.log", "1,200"], ["call\\x1b[00", "1"]
    ]  # fmt: skip
    assert lines[-1].split() == ["5", "further", "5"]
    # Each number is right-aligned below its own column.
    assert lines[1].rstrip().endswith("1,200")
    assert len(lines[1].rstrip()) < len(lines[2].rstrip())
    assert not Path(table.environment["OTEL_BRIDGE_CAPTURE_COUNTS"]).exists()


def test_a_command_without_the_package_gets_a_line_and_one_without_a_capture_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    CaptureTable({"OTEL_BRIDGE_CAPTURE": "wandb,trackio"}).show(
        terminal_of_80_columns()
    )
    CaptureTable({}).show(terminal_of_80_columns())

    assert (
        capsys.readouterr().out
        == "captured: nothing; no Python program of the command used wandb,trackio, or it ran with -I, -E or -S\n"
    )
