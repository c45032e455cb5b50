"""Tables at a server that does not list an artifact's versions, and what that costs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import pytest

from otel_bridge.errors import RetryableError
from otel_bridge.exporter import RunInfo, RunWriter
from otel_bridge.records import Status
from otel_bridge.testing import MemoryTable, deliver, samples
from otel_bridge_wandb.online import line_ledger
from otel_bridge_wandb.online import store as online_store
from support.trackers import wandb_online_runs as online
from support.trackers.wandb_backend.server import WandbServer

server, run, memory, opened = online.server, online.run, online.memory, online.opened
SENDS = 3


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    monkeypatch.setattr(online_store, "_END_S", 0.2)
    monkeypatch.setattr(line_ledger, "MAX_SENT", SENDS)
    return {"STALL_S": "1"}


def ended(writer: RunWriter) -> bool:
    """End as the bridge does, which opens the run anew when that fails."""
    try:
        writer.end(Status.FINISHED)
    except RetryableError:
        return False
    return True


def test_a_run_ends_at_a_server_that_lists_no_artifacts_and_sends_its_rollouts_a_few_times_at_most(
    server: WandbServer,
    run: RunInfo,
    memory: MemoryTable,
    opened: Callable[[], RunWriter],
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.resolver.lists_artifacts = False
    given = samples.placed([samples.rollout(n, step=n) for n in range(1, 4)])
    ends = 0
    done = False
    while not done:
        ends += 1
        assert ends <= SENDS + 1, "the run never ends"
        writer = opened()
        deliver(writer, given, held=writer.durable())
        done = ended(writer)

    again = online.open_run(server, run, memory)
    held = again.durable()
    again.close()

    assert (held, server.lines(run.id)) == (3, SENDS)
    said = [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING
    ]
    expected = f"W&B: table explorer/rollouts: its artifact was not seen {SENDS} times; not sent again"
    assert [line for line in said if "artifact" in line] == [expected]
