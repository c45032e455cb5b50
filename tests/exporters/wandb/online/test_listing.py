"""Tables at a server that does not list an artifact's versions, and what that costs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import pytest

from otel_bridge.errors import RetryableError
from otel_bridge.exporter import RunInfo, RunWriter
from otel_bridge.records import Status
from otel_bridge.testing import MemoryTable, deliver, samples
from otel_bridge_wandb.online import store as online_store
from otel_bridge_wandb.online.line_ledger import MAX_UNSEEN, LineLedger
from support.bridge.bridge_doubles import until
from support.trackers import wandb_online_runs as online
from support.trackers.wandb_backend.server import WandbServer

server, run, memory, opened = online.server, online.run, online.memory, online.opened


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    monkeypatch.setattr(online_store, "_END_S", 0.2)
    return {"STALL_S": "1"}


def ended(writer: RunWriter) -> bool:
    """End as the bridge does, which opens the run anew when that fails."""
    try:
        writer.end(Status.FINISHED)
    except RetryableError:
        return False
    return True


def traces(server: WandbServer, run: RunInfo) -> list[object]:
    return [row["trace"] for row in server.table(run.id, "explorer/rollouts")]


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
        assert ends <= MAX_UNSEEN, "the run never ends"
        writer = opened()
        deliver(writer, given, held=writer.durable())
        done = ended(writer)
    lines = server.lines(run.id)

    again = online.open_run(
        server, run, memory, STALL_S="300"
    )  # a later start goes on, and sends nothing twice
    held = again.durable()
    more = samples.placed([samples.rollout(4, step=4)], 4)
    deliver(again, more, held=held)
    until(lambda: again.durable() == 4)
    at_once = ended(again)

    assert (lines, held, at_once, server.lines(run.id)) == (
        MAX_UNSEEN,
        3,
        True,
        MAX_UNSEEN + 1,
    )
    assert set(traces(server, run)) == {rollout.id for rollout in (*given, *more)}
    said = [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING
    ]
    about_lists = [line for line in said if "lists no versions" in line]
    expected = (
        f"W&B: this server lists no versions of artifacts (table explorer/rollouts, {MAX_UNSEEN} uploads); "
        "rollouts count as stored once it holds their lines"
    )
    assert about_lists == [expected]


def test_a_run_that_goes_on_for_long_at_such_a_server_gets_a_safe_mark_too(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter]
) -> None:
    server.resolver.lists_artifacts = False
    given = samples.placed([samples.rollout(1, step=1)])
    for turn in range(
        MAX_UNSEEN
    ):  # each is closed because its upload seems to stand still, or at a restart
        writer = opened()
        deliver(writer, given, held=writer.durable())
        until(lambda lines=turn + 1: server.lines(run.id) == lines)
        until(lambda writer=writer: _stalled(writer))
        writer.close()

    writer = opened()

    assert (writer.durable(), server.lines(run.id)) == (1, MAX_UNSEEN)
    writer.close()


def _stalled(writer: RunWriter) -> bool:
    try:
        writer.durable()
    except RetryableError as error:
        return "explorer/rollouts did not arrive" in str(error)
    return False


def test_at_a_server_that_lists_versions_a_missing_one_is_sent_again_and_a_kill_does_not_count() -> (
    None
):
    memory = MemoryTable()
    lines = LineLedger(memory, 0)
    lines.announce_table("t", [1], 100)
    lines.logged_table(105)
    lines.advance(1)
    lines.committed(lambda _: [102])
    lines.announce_table("t", [2], 200)
    lines.logged_table(205)
    lines.advance(2)

    for _kill in range(MAX_UNSEEN):
        lines = LineLedger(memory, 2)
        lines.lose_pending(300)
    killed = list(lines.due([1, 2]))
    for upload in range(MAX_UNSEEN):
        lines.announce_table("t", [2], 400 + upload)
        lines.logged_table(400 + upload)
        lines.advance(lines.next)
        lines.uploaded()
        if upload < MAX_UNSEEN - 1:
            lines = LineLedger(memory, lines.next)
            lines.lose_pending(500)

    assert (killed, list(lines.due([1, 2])), lines.durable()) == ([2], [], 2)
