"""Tables of rollouts when a write fails and the same writer is given it again, as the bridge does."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable

import pytest

from otel_bridge.errors import RetryableError
from otel_bridge.exporter import RunInfo, RunWriter
from otel_bridge.records import Status
from otel_bridge.testing import MemoryTable, deliver, samples
from support.bridge.bridge_doubles import until
from support.trackers import wandb_online_runs as online
from support.trackers.wandb_backend.server import WandbServer
from support.trackers.wandb_backend.state import artifact_name
from support.trackers.wandb_online_runs import open_run, rows

server, run, memory, opened, limits = (
    online.server,
    online.run,
    online.memory,
    online.opened,
    online.limits,
)


def traces(
    server: WandbServer, run: RunInfo, key: str = "explorer/rollouts"
) -> list[object]:
    return [row["trace"] for row in server.table(run.id, key)]


def test_rollouts_that_had_to_wait_for_room_stand_in_the_table_once(
    server: WandbServer, run: RunInfo, memory: MemoryTable
) -> None:
    writer = open_run(server, run, memory, MAX_LINES="2")
    given = samples.placed([samples.rollout(n, step=n) for n in (1, 2)], 3)
    server.hang(what="filestream")
    deliver(writer, rows(1, 2))
    for _retry in range(2):
        with pytest.raises(RetryableError, match="has not yet taken 2 rows"):
            writer.write_rollouts(given)
    server.heal()
    until(lambda: writer.durable() == 2)

    writer.write_rollouts(given)
    writer.end(Status.FINISHED)

    assert traces(server, run) == [rollout.id for rollout in given]


def test_evaluations_that_had_to_wait_for_room_stand_in_the_table_once(
    server: WandbServer, run: RunInfo, memory: MemoryTable
) -> None:
    writer = open_run(server, run, memory, MAX_LINES="2")
    (value,) = samples.placed([samples.evaluation(samples.rollout(1))], 3)
    server.hang(what="filestream")
    deliver(writer, rows(1, 2))
    with pytest.raises(RetryableError, match="has not yet taken 2 rows"):
        writer.write_evaluations([value])
    server.heal()
    until(lambda: writer.durable() == 2)

    writer.write_evaluations([value])
    writer.end(Status.FINISHED)

    assert traces(server, run, "explorer/rollouts_late") == [value.rollout_id]


def test_rollouts_whose_logging_failed_stand_in_the_table_once(
    server: WandbServer,
    run: RunInfo,
    opened: Callable[[], RunWriter],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = opened()
    first, second = samples.placed([samples.rollout(n, step=n) for n in (1, 2)])
    writer.write_rollouts([first])
    with monkeypatch.context() as patched:
        patched.setattr(importlib.import_module("wandb").Run, "log", _fails)
        with pytest.raises(RetryableError):
            writer.write_rollouts([second])

    writer.write_rollouts([second])
    writer.end(Status.FINISHED)

    assert traces(server, run) == [first.id, second.id]
    assert [
        row["explorer/rollouts"]["increment_num"] for row in server.run(run.id).history
    ] == [
        0,
        1,
    ]


def test_each_rollout_stands_once_on_the_page_and_once_in_the_last_artifact(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter]
) -> None:
    writer = opened()
    rollouts = samples.placed([samples.rollout(n, step=n // 2) for n in range(10)])
    for first in range(0, 10, 2):
        writer.write_rollouts(rollouts[first : first + 2])
    writer.end(Status.FINISHED)

    # Every version of the artifact names the files of the earlier ones too: only the last one counts.
    latest = server.store.latest(artifact_name(run.id, "explorer/rollouts"))
    assert latest is not None
    tables = [
        json.loads(server.store.blobs[str(entry["digest"])])
        for entry in latest.entries.values()
    ]
    stored = [
        row[table["columns"].index("trace")]
        for table in tables
        for row in table["data"]
    ]
    assert traces(server, run) == [rollout.id for rollout in rollouts]
    assert sorted(stored) == sorted(rollout.id for rollout in rollouts)


def _fails(*_args: object, **_more: object) -> None:
    raise ConnectionError("cut")
