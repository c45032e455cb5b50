"""The recorded job in the other places where Trackio keeps runs: a server, a Space, an inbox on a shared folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from support.conformance.suite import ConformanceSuite, ReadShown
from support.conformance.truth import KeptKinds, Shown
from support.trackers import conformance_reading, trackio_space
from support.trackers.trackio_server import TOKEN, TrackioServer

pytestmark = pytest.mark.slow
EVERYTHING = {"OTEL_BRIDGE_TRACKIO_ALL_SERIES": "1"}


@pytest.mark.long
class TestTrackioServer(ConformanceSuite):
    target = "otel_bridge_trackio:exporter"
    keeps = KeptKinds(status=False)

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[TrackioServer]:
        server = TrackioServer(tmp_path / "server").start()
        yield server
        server.kill()

    @pytest.fixture
    def environment(self, server: TrackioServer) -> Mapping[str, str]:
        return {
            "TRACKIO_SERVER_URL": server.url,
            "TRACKIO_WRITE_TOKEN": TOKEN,
            **EVERYTHING,
        }

    @pytest.fixture
    def read(self, server: TrackioServer) -> ReadShown:
        return lambda run: conformance_reading.trackio(server.folder / "store", run)


@pytest.mark.long
class TestTrackioSpace(ConformanceSuite):
    """As far as loopback goes: the Hub before it is not here."""

    target = "support.trackers.trackio_space:exporter"
    keeps = KeptKinds(status=False)

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[TrackioServer]:
        server = TrackioServer(
            tmp_path / "space", SYSTEM="spaces", HF_TOKEN=trackio_space.TOKEN
        ).start()
        yield server
        server.kill()

    @pytest.fixture
    def environment(self, server: TrackioServer) -> Mapping[str, str]:
        return {
            trackio_space.URL: server.url,
            "PYTHONPATH": str(conformance_reading.TESTS),
            **EVERYTHING,
        }

    @pytest.fixture
    def read(self, server: TrackioServer) -> ReadShown:
        def shown(run: RunInfo) -> Shown:
            server.kill()  # a Space keeps its database to itself
            return conformance_reading.trackio(server.folder / "store", run)

        return shown


@pytest.mark.long
class TestTrackioInbox(ConformanceSuite):
    """What the dashboard shows once it has imported the files."""

    target = "otel_bridge_trackio:exporter"
    keeps = KeptKinds(status=False)

    @pytest.fixture
    def environment(self, tmp_path: Path) -> Mapping[str, str]:
        return {
            "TRACKIO_DIR": str(tmp_path / "shared"),
            "TRACKIO_STORAGE_MODE": "jsonl",
            **EVERYTHING,
        }

    @pytest.fixture
    def read(self, tmp_path: Path) -> ReadShown:
        return lambda run: conformance_reading.trackio(tmp_path / "shared", run)
