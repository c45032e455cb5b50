"""W&B fails behind ``otel-bridge serve`` in ways of its stand-in server; the exporter ``file`` goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_bridge.journal.control import send_control
from support.bridge.bridge_doubles import report_when, until
from support.collector.service_process import (
    Service,
    exporter_is,
    folder_of,
    service,
    written_rows,
)
from support.otlp.otlp_samples import RUN
from support.trackers.wandb_backend.server import WandbServer
from support.trainers.command_runs import environment
from support.waiting import HANG_S

pytestmark = pytest.mark.slow

ROWS = 50
_WAIT_S = HANG_S
_BOTH = ("--exporters", "wandb,file")


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with WandbServer() as server:
        yield server
        assert (server.errors, server.resolver.unknown) == ([], [])


def all_there(server: WandbServer, parts: int) -> bool:
    """Return whether W&B holds each row of the first *parts* once and in order."""
    if all(run_id != RUN for _, _, run_id in server.store.runs):
        return False
    held = [
        line["trainer/step"]
        for line in server.run(RUN).history
        if "trainer/loss" in line
    ]
    return held == list(range(1, parts * ROWS + 1))


def sent(running: Service, tmp_path: Path, part: int) -> None:
    """Send one part of the rows; ``file`` has it soon, whatever W&B does."""
    for first in range(part * ROWS + 1, (part + 1) * ROWS + 1, 10):
        assert running.send(*range(first, first + 10)) == 200
    until(lambda: written_rows(folder_of(tmp_path), "file") == (part + 1) * ROWS)


@pytest.mark.long
def test_wandb_refusing_once_hanging_and_gone_at_the_end_gets_every_row_once_and_in_order(
    tmp_path: Path, server: WandbServer
) -> None:
    env = environment(
        tmp_path,
        WANDB_DIR=str(tmp_path / "wandb"),
        OTEL_BRIDGE_WANDB_TRANSMIT_S="1",
        OTEL_BRIDGE_WANDB_POLL_S="0.1",
        OTEL_BRIDGE_DRAIN_TIMEOUT_S="2",
        **server.environment(),
    )

    with service(tmp_path, env, *_BOTH) as running:
        sent(running, tmp_path, 0)
        until(lambda: all_there(server, 1))

        server.answer(403, what="filestream", times=1)
        sent(running, tmp_path, 1)
        report_when(folder_of(tmp_path), exporter_is("blocked", "wandb"))
        send_control(
            folder_of(tmp_path), "retry"
        )  # it would be tried again within a minute
        until(lambda: all_there(server, 2))

        server.hang()
        sent(running, tmp_path, 2)
        server.heal()
        until(lambda: all_there(server, 3))

        server.refuse()
        sent(running, tmp_path, 3)
        code, said = running.end()
    server.heal()
    with service(
        tmp_path, {**env, "OTEL_BRIDGE_DRAIN_TIMEOUT_S": "60"}, *_BOTH
    ) as running:
        last = running.end()

    assert all_there(server, 4)
    assert (code, "wandb" in said) == (1, True), said
    assert last[0] == 0, last[1]
    assert server.run(RUN).overwritten == []
