from __future__ import annotations

from collections.abc import Mapping

import pytest

from otel_bridge.exporter import Exporter
from otel_bridge.testing.contract import ReadBack, WriterContract
from support.bridge.recording_tracker import RecordingTracker


class TestRecorder(WriterContract):
    reports_durable = False
    lag = 0

    @pytest.fixture
    def recorder(self) -> RecordingTracker:
        return RecordingTracker(reports_durable=self.reports_durable, lag=self.lag)

    @pytest.fixture
    def exporter(self, recorder: RecordingTracker) -> Exporter:
        return recorder.exporter

    @pytest.fixture
    def environment(self) -> Mapping[str, str]:
        return {}

    @pytest.fixture
    def read_back(self, recorder: RecordingTracker) -> ReadBack:
        return lambda run: recorder.contents(run.id)


class TestRecorderThatTellsWhatIsSafe(TestRecorder):
    reports_durable = True
