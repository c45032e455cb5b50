from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_bridge.emit.bridge_process import flush, starter
from otel_bridge.emit.bridge_process.flush import DeliveryWaiter, FlushOutcome
from otel_bridge.emit.bridge_process.starter import BridgeStarter
from otel_bridge.emit.recording.process_segment import Checkpoint
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import (
    ExporterReport,
    ProcessReport,
    Report,
    write_report,
)
from otel_bridge.text import wait_display
from support.trainers.emit_samples import CLEAN

_MARK = Checkpoint("me", 1, 500)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    """A run folder whose bridge is this test."""
    folder = RunFolder(tmp_path, "r")
    folder.create()
    lock = folder.lock()
    assert lock.acquire()
    yield folder
    lock.release()


def waited(
    folder: RunFolder,
    report: Report | None,
    *,
    end: bool = False,
    hold: bool = False,
    timeout_s: float = 0.05,
) -> FlushOutcome:
    if report is not None:
        write_report(folder, report)
    keeper = BridgeStarter(folder, CLEAN, hold=hold)
    return DeliveryWaiter(folder, keeper, ("trackio",), _MARK, end=end).wait(timeout_s)


def report(**fields: object) -> Report:
    standard = Report(
        processes={"me": ProcessReport(segment=1, offset=500)},
        position=7,
        exporters={"trackio": ExporterReport(written=7, state="idle")},
    )
    for name, value in fields.items():
        setattr(standard, name, value)
    return standard


def test_all_is_written_when_the_report_is_past_it_and_every_exporter_has_its_last_position(
    folder: RunFolder,
) -> None:
    assert waited(folder, report()) == FlushOutcome(True, report())


@pytest.mark.parametrize(
    "fields",
    [
        {"processes": {"me": ProcessReport(segment=1, offset=499)}},
        {"processes": {"me": ProcessReport(segment=0, offset=9000)}},
        {"processes": {"other": ProcessReport(segment=1, offset=500)}},
        {"processes": {"me": ProcessReport(segment=1, offset=500, waiting_rows=1)}},
        {"exporters": {}},
        {"exporters": {"trackio": ExporterReport(written=6, state="writing")}},
        {
            "exporters": {
                "trackio": ExporterReport(written=7),
                "otlp": ExporterReport(written=0, state="writing"),
            }
        },
    ],
)
def test_it_is_waited_for(folder: RunFolder, fields: dict[str, object]) -> None:
    folder.segment_path("me", 1).write_bytes(b"some of it not read yet")
    assert not waited(folder, report(**fields)).written


@pytest.mark.parametrize("state", ["blocked", "retrying"])
def test_an_exporter_that_cannot_write_now_is_not_waited_for_and_said(
    folder: RunFolder, state: str
) -> None:
    blocked = ExporterReport(
        written=0, state=state, reason="no key", help="wandb login"
    )
    exporters = {"trackio": ExporterReport(written=7), "wandb": blocked}

    outcome = waited(folder, report(exporters=exporters))

    assert outcome == FlushOutcome(
        True,
        report(exporters=exporters),
        (f"wandb is {state} with 7 records to go: no key; wandb login",),
    )


def test_segments_that_were_read_and_deleted_count_as_read_whenever_the_report_was_written(
    folder: RunFolder,
) -> None:
    blocked = {"trackio": ExporterReport(written=0, state="blocked", reason="no key")}
    last = report(processes={}, exporters=blocked, time_unix_ns=1)

    assert waited(folder, last, end=True) == FlushOutcome(
        True, last, ("trackio is blocked with 7 records to go: no key",)
    )
    folder.segment_path("me", 1).write_bytes(b"not read yet")
    assert not waited(folder, last, end=True).written


def test_what_is_read_of_a_report_before_the_segments_are_seen_gone_does_not_count(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_before = report(
        processes={},
        position=3,
        exporters={"trackio": ExporterReport(written=3)},
        ended=True,
    )
    last = report(processes={}, ended=True)
    reports = iter([of_before, last])
    monkeypatch.setattr(flush, "read_report", lambda _: next(reports))

    assert waited(folder, None, end=True) == FlushOutcome(True, last)


def test_no_bridge_is_started_for_a_run_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(
        starter, "start_bridge", lambda *given, **named: started.append(given)
    )
    folder = RunFolder(tmp_path, "r")
    folder.create()
    last = report(processes={}, ended=True)

    assert (waited(folder, last, end=True), started) == (FlushOutcome(True, last), [])


def test_otlp_is_waited_for_by_what_it_forwarded(folder: RunFolder) -> None:
    exporters = {"trackio": ExporterReport(written=7), "otlp": ExporterReport()}
    forwarded = {
        "me": ProcessReport(
            segment=1, offset=500, forwarded_segment=1, forwarded_offset=500
        )
    }

    assert waited(folder, report(exporters=exporters, processes=forwarded)).written


def test_an_exporter_that_has_ended_the_run_is_not_waited_for(
    folder: RunFolder,
) -> None:
    assert waited(
        folder, report(exporters={"trackio": ExporterReport(written=6, state="ended")})
    ).written


def test_under_a_launcher_its_exporters_count(folder: RunFolder) -> None:
    assert waited(
        folder, report(exporters={"file": ExporterReport(written=7)}, launcher=True)
    ).written


def test_the_last_process_waits_for_the_end_of_the_run(folder: RunFolder) -> None:
    ended = {"trackio": ExporterReport(written=7, state="ended")}

    assert not waited(folder, report(), end=True).written
    assert waited(folder, report(exporters=ended), end=True).written
    assert waited(folder, report(ended=True), end=True).written


def test_a_process_that_is_not_the_last_does_not_wait_for_the_end_of_the_run(
    folder: RunFolder,
) -> None:
    both = {
        "me": ProcessReport(segment=1, offset=500),
        "other": ProcessReport(alive=True),
    }

    assert waited(folder, report(processes=both), end=True).written


def test_an_exporter_that_left_the_run_with_the_process_is_waited_for_while_it_is_owed_records(
    folder: RunFolder,
) -> None:
    left = report(
        processes={
            "me": ProcessReport(segment=1, offset=500),
            "other": ProcessReport(alive=True),
        },
        exporters={"file": ExporterReport(written=7)},
        former={"trackio": ExporterReport(written=6)},
    )

    assert waited(folder, left, end=True) == FlushOutcome(True, left)
    left.owed = {"trackio": 1}
    assert not waited(folder, left, end=True).written


def test_held_nothing_is_waited_for(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "held")
    folder.create()

    assert waited(folder, None, hold=True) == FlushOutcome(
        False, None, ("not delivered yet",)
    )


@pytest.mark.parametrize(
    ("fields", "awaited"),
    [
        (None, "the start of the bridge"),
        (
            {"processes": {"me": ProcessReport(segment=1, offset=499)}},
            "the bridge to read the records",
        ),
        (
            {"exporters": {"trackio": ExporterReport(written=6)}},
            "records in trackio 6 of 7",
        ),
        ({}, "the trackers to end the run"),
    ],
)
def test_a_wait_shows_what_it_waits_for(
    folder: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fields: dict[str, object] | None,
    awaited: str,
) -> None:
    folder.segment_path("me", 1).write_bytes(b"some of it not read yet")
    monkeypatch.setattr(wait_display, "_LINE_S", 0.0)

    reported = None if fields is None else report(**fields)
    # Long enough for the first look on a loaded machine.
    waited(folder, reported, end=True, timeout_s=0.5)

    assert (
        capsys.readouterr().err.splitlines()[0]
        == f"otel-bridge: waiting (0 s): {awaited}"
    )
