from __future__ import annotations

from collections.abc import Mapping

import pytest

from otel_bridge.exporter import Exporter
from otel_bridge.testing.contract import ReadBack, WriterContract
from otel_bridge_trackio import exporter as trackio_exporter
from support.trackers.trackio_store import ENVIRONMENT, held


@pytest.mark.slow
class TestTrackio(WriterContract):
    target = "otel_bridge_trackio:exporter"
    keeps_status = False

    @pytest.fixture
    def exporter(self) -> Exporter:
        return trackio_exporter

    @pytest.fixture
    def environment(self) -> Mapping[str, str]:
        return ENVIRONMENT

    @pytest.fixture
    def read_back(self) -> ReadBack:
        return held
