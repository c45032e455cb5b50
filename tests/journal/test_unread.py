"""What a bridge has not read yet, by its report and the sizes of segments."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.report import ProcessReport, Report, unread_bytes
from support.otlp.journal_samples import run_folder


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


def test_a_segment_that_is_gone_or_was_cut_since_the_report_counts_nothing(folder: RunFolder) -> None:
    report = Report(processes={"a": ProcessReport(segment=2, offset=90), "b": ProcessReport(segment=4, offset=10)})

    assert unread_bytes(folder.segments(), report) == 0
