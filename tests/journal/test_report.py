"""The report of a bridge: written whole, read with care; what it says of unread bytes and of places."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from otel_bridge.errors import JournalError
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import (
    BridgeReport,
    ExporterReport,
    ProcessReport,
    Report,
    RoleReport,
    read_report,
    unread_bytes,
    view_links,
    write_report,
)
from support.otlp.journal_samples import run_folder

REPORT = Report(
    time_unix_ns=1_700_000_000_000_000_000,
    bridge=BridgeReport(12, "node1", "boot-1"),
    roles={"trainer": RoleReport(1, 2)},
    processes={
        "a1": ProcessReport(2, 500, 1, 30, "trainer", True),
        "b2": ProcessReport(role=None, alive=False),
    },
    position=99,
    exporters={
        "mlflow": ExporterReport(
            written=90,
            durable=80,
            state="blocked",
            reason="401",
            help="set MLFLOW_TRACKING_TOKEN",
            url="http://x",
            rows=7,
            rollouts=2,
            dead_letters=1,
            destination={"MLFLOW_TRACKING_URI": "http://x"},
            view="mlflow ui",
        )
    },
    drops={"quota": 3},
    missing_rows=1,
    steps={"trainer/step": 154},
    rows=80,
    rollouts=10,
    waiting={"rows": 0, "traces": 1, "rollouts": 4},
    status="running",
    ended=False,
    launcher=True,
)


def test_a_report_comes_back_whole_and_is_its_owners_alone(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)

    write_report(folder, REPORT)

    assert read_report(folder) == REPORT
    assert stat.S_IMODE(folder.report_path.stat().st_mode) == 0o600


def test_a_reader_sees_the_old_report_or_the_new_one_while_it_is_replaced(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    write_report(folder, Report(position=0, rows=0))

    def replace() -> None:
        for i in range(1, 300):
            write_report(
                folder,
                Report(position=i, rows=i, steps={f"axis{k}": i for k in range(100)}),
            )

    writer = threading.Thread(target=replace)
    writer.start()
    seen = []
    while writer.is_alive():
        seen.append(read_report(folder))
    writer.join()
    positions = [report.position for report in seen if report is not None]

    assert len(positions) == len(seen) > 0
    assert positions == sorted(positions)
    assert all(report is not None and report.position == report.rows for report in seen)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[1]",
        '{"position": "7"}',
        '{"rows": true}',
        '{"processes": {"a1": 3}}',
        '{"exporters": []}',
        "\0",
    ],
)
def test_a_report_that_cannot_be_understood_is_none(tmp_path: Path, text: str) -> None:
    folder = run_folder(tmp_path)
    before = read_report(folder)

    folder.report_path.write_text(text)

    assert (before, read_report(folder)) == (None, None)


def test_fields_of_another_version_are_passed_over_and_missing_ones_have_their_default(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)

    folder.report_path.write_text(
        '{"position": 7, "mood": "good", "exporters": {"otlp": {"written": 3, "new": []}}}'
    )

    assert read_report(folder) == Report(
        position=7, exporters={"otlp": ExporterReport(written=3)}
    )


def test_a_report_that_cannot_be_written_is_an_error_of_the_journal(
    tmp_path: Path,
) -> None:
    with pytest.raises(JournalError, match="cannot be written"):
        write_report(RunFolder(tmp_path, "none"), REPORT)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    found = run_folder(tmp_path)
    for number, size in ((0, 100), (1, 200), (2, 50)):
        found.segment_path("a", number).write_bytes(bytes(size))
    found.segment_path("b", 0).write_bytes(bytes(30))
    return found


def test_without_a_report_everything_is_unread(folder: RunFolder) -> None:
    assert unread_bytes(folder.segments(), None) == 380


def test_what_lies_behind_the_places_of_the_report_is_unread(folder: RunFolder) -> None:
    report = Report(processes={"a": ProcessReport(segment=1, offset=120)})

    assert unread_bytes(folder.segments(), report) == 80 + 50 + 30


def test_a_segment_that_is_gone_or_was_cut_since_the_report_counts_nothing(
    folder: RunFolder,
) -> None:
    report = Report(
        processes={
            "a": ProcessReport(segment=2, offset=90),
            "b": ProcessReport(segment=4, offset=10),
        }
    )

    assert unread_bytes(folder.segments(), report) == 0


def test_a_command_goes_before_the_address_that_it_serves_and_what_has_neither_is_left_out(
    environment_folder: Path,
) -> None:
    exporters = {
        "mlflow": ExporterReport(
            url="http://127.0.0.1:5000/#/runs/1", view="mlflow ui"
        ),
        "wandb": ExporterReport(
            url="https://w/ada/maths/runs/1", view="https://w/home"
        ),
        "offline": ExporterReport(view="/w/wandb", upload="trackio sync /w/wandb"),
        "otlp": ExporterReport(),
        "trackio": ExporterReport(view="trackio show"),
    }

    assert view_links(Report(exporters=exporters)) == [
        ("mlflow", "mlflow ui"),
        ("mlflow page", "http://127.0.0.1:5000/#/runs/1"),
        ("wandb", "https://w/ada/maths/runs/1"),
        ("offline", "/w/wandb"),
        ("offline upload", f"'{environment_folder}/trackio' sync /w/wandb"),
        ("trackio", f"'{environment_folder}/trackio' show"),
    ]


def test_a_tracker_that_was_named_after_all_records_were_deleted_shows_no_run() -> None:
    late = ExporterReport(view="wandb sync offline-run-*", missed=35)
    partly = ExporterReport(view="wandb sync offline-run-*", missed=30, rows=5)

    assert view_links(Report(exporters={"wandb": late})) == []
    assert [link.label for link in view_links(Report(exporters={"wandb": partly}))] == [
        "wandb"
    ]


def test_a_folder_whose_name_is_not_utf_8_is_in_the_report_all_the_same(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    odd = os.fsdecode(b"/data/\xff")
    trackio = ExporterReport(destination={"TRACKIO_DIR": odd}, view=f"show {odd}")

    write_report(folder, Report(position=7, exporters={"trackio": trackio}))

    report = read_report(folder)
    assert report is not None
    assert report.position == 7
    assert report.exporters["trackio"].view == r"show /data/\udcff"
