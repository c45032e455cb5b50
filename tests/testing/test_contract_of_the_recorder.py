from __future__ import annotations

from collections.abc import Mapping

import pytest

from otel_bridge.exporter import Exporter
from otel_bridge.testing import Recorder
from otel_bridge.testing.contract import ReadBack, WriterContract


class TestRecorder(WriterContract):
    tells_safe = False
    lag = 0

    @pytest.fixture
    def recorder(self) -> Recorder:
        return Recorder(tells_safe=self.tells_safe, lag=self.lag)

    @pytest.fixture
    def exporter(self, recorder: Recorder) -> Exporter:
        return recorder.exporter

    @pytest.fixture
    def environment(self) -> Mapping[str, str]:
        return {}

    @pytest.fixture
    def read_back(self, recorder: Recorder) -> ReadBack:
        return lambda run: recorder.contents(run.id)


class TestRecorderThatTellsWhatIsSafe(TestRecorder):
    tells_safe = True
