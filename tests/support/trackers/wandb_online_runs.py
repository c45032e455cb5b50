"""Runs written online to the stand-in server: fixtures for the modules that take them, and what the server holds then.

A module takes a fixture by naming it (``server = online.server``), and may have its own `limits` or `run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from otel_bridge.errors import BlockedError
from otel_bridge.exporter import ExporterSettings, RunInfo, RunWriter
from otel_bridge.records import Row
from otel_bridge.testing import MemoryTable, open_writer, samples
from otel_bridge.testing.samples import run_info
from otel_bridge_wandb import exporter
from support.trackers.wandb_backend.server import WandbServer

FAST = {
    "OTEL_BRIDGE_WANDB_TRANSMIT_S": "1",
    "OTEL_BRIDGE_WANDB_POLL_S": "0.1",
    "OTEL_BRIDGE_WANDB_INIT_TIMEOUT_S": "10",
    "OTEL_BRIDGE_WANDB_FINISH_TIMEOUT_S": "10",
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    with WandbServer() as server:
        for name, value in {**server.environment(), **FAST}.items():
            monkeypatch.setenv(name, value)
        yield server
        assert (server.errors, server.resolver.unknown) == ([], [])


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> RunInfo:
    return made(run_info(tmp_path, request.node.name))


@pytest.fixture
def memory() -> MemoryTable:
    return MemoryTable()


@pytest.fixture
def limits() -> Mapping[str, str]:
    """What `opened` is given besides `FAST`."""
    return {}


@pytest.fixture
def opened(
    server: WandbServer, run: RunInfo, memory: MemoryTable, limits: Mapping[str, str]
) -> Callable[[], RunWriter]:
    return lambda: open_run(server, run, memory, **limits)


def made(run: RunInfo) -> RunInfo:
    """Make the folder of a run."""
    run.folder.mkdir(exist_ok=True)
    return run


def settings_at(server: WandbServer, folder: Path, **limits: str) -> ExporterSettings:
    """Settings of the exporter, fast; *limits* by their names behind ``OTEL_BRIDGE_WANDB_``."""
    own = {f"OTEL_BRIDGE_WANDB_{name}": value for name, value in limits.items()}
    return exporter.read_settings({**server.environment(), **FAST, **own}, folder)


def open_run(
    server: WandbServer, run: RunInfo, memory: MemoryTable, **limits: str
) -> RunWriter:
    return open_writer(exporter, run, settings_at(server, run.folder, **limits), memory)


def rows(first: int, last: int, *, at: int | None = None) -> list[Row]:
    """A row a step, whose loss is its step, from position *at* on; by default that is the first step."""
    return samples.placed(
        [samples.row(step, {"loss": step}) for step in range(first, last + 1)],
        first if at is None else at,
    )


def losses(server: WandbServer, run: RunInfo) -> list[object]:
    return [
        row["trainer/loss"]
        for row in server.run(run.id).history
        if "trainer/loss" in row
    ]


def blocked(writer: RunWriter, said: str) -> bool:
    """Return whether asking the writer how far it is shows that it is blocked, with *said* in the reason."""
    try:
        writer.durable()
    except BlockedError as exc:
        return said in str(exc)
    return False
