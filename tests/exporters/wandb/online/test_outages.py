"""Outages of the W&B server, and kills of the writer: what a fault becomes, and what is sent again, once it is over."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from otel_bridge.errors import BlockedError, RetryableError
from otel_bridge.exporter import RunInfo, RunWriter
from otel_bridge.records import Record, Status
from otel_bridge.testing import MemoryTable, deliver, samples
from otel_bridge.testing.samples import run_info
from otel_bridge_wandb import exporter
from support.bridge.bridge_doubles import until
from support.trackers import wandb_online_runs as online
from support.trackers.wandb_backend.server import WandbServer
from support.trackers.wandb_online_runs import (
    FAST,
    blocked,
    losses,
    made,
    open_run,
    rows,
    settings_at,
)
from support.trackers.wandb_writing import WritingJob, keys_of, long_job, rollout_ids

IMPATIENT = {"STALL_S": "4", "INIT_TIMEOUT_S": "3", "FINISH_TIMEOUT_S": "3"}
server, run, memory, opened = online.server, online.run, online.memory, online.opened


@pytest.fixture
def limits() -> Mapping[str, str]:
    return IMPATIENT


def test_safe_follows_the_lines_that_the_server_holds(
    server: WandbServer,
    run: RunInfo,
    opened: Callable[[], RunWriter],
    memory: MemoryTable,
) -> None:
    server.hang(what="filestream")
    writer = opened()
    deliver(writer, rows(1, 5))
    before = (writer.durable(), [key for key, _ in memory.items("line/")])

    server.heal()
    until(lambda: writer.durable() == 5)
    writer.close()

    assert before == (0, ["line/0000000000000000"])
    assert list(memory.items("line/")) == []


def test_an_upload_that_died_of_403_blocks_and_goes_on_after_reopening(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter]
) -> None:
    writer = opened()
    server.answer(403, what="filestream")
    deliver(writer, rows(1, 3))

    until(lambda: blocked(writer, "403"))
    with pytest.raises(BlockedError, match="403"):
        writer.write_rows(rows(4, 4))
    writer.close()
    server.heal()
    again = opened()
    deliver(again, rows(1, 4), held=again.durable())
    again.end(Status.FINISHED)

    assert losses(server, run) == [1, 2, 3, 4]


@pytest.mark.slow
def test_an_upload_that_stands_still_at_a_server_that_answers_is_opened_anew(
    server: WandbServer, run: RunInfo, memory: MemoryTable
) -> None:
    limits = {"INIT_TIMEOUT_S": "3", "STALL_S": "3", "FINISH_TIMEOUT_S": "1"}
    writer = open_run(server, run, memory, **limits)
    deliver(writer, rows(1, 3))
    until(lambda: writer.durable() == 3)
    server.hang(what="filestream")
    deliver(writer, rows(4, 7))

    said: list[str] = []

    def dead() -> bool:
        try:
            writer.durable()
        except RetryableError as exc:
            said.append(str(exc))
        return bool(said)

    until(dead)
    with pytest.raises(RetryableError, match="Timed out finishing run"):
        writer.close()
    server.heal()
    again = open_run(server, run, memory, **limits)
    deliver(again, rows(1, 9), held=again.durable())
    again.end(Status.FINISHED)

    assert said == ["W&B answers, but 4 lines did not arrive within 3 s"]
    assert losses(server, run) == list(range(1, 10))
    assert (server.run(run.id).overwritten, server.run(run.id).state) == (
        [],
        "finished",
    )


def uploads(server: WandbServer) -> int:
    """How many requests of the upload have come, whatever they were answered."""
    return sum(request.what == "filestream" for request in server.received)


@pytest.mark.parametrize(
    "fault", ["503", "429", "refuse", "hang", "drop", "drop taken"]
)
def test_an_outage_of_the_upload_loses_and_doubles_nothing(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter], fault: str
) -> None:
    writer = opened()
    deliver(writer, rows(1, 2))
    {
        "503": lambda: server.answer(503, what="filestream", times=2),
        "429": lambda: server.answer(429, what="filestream", times=1, retry_after_s=1),
        "refuse": server.refuse,
        "hang": lambda: server.hang(what="filestream"),
        "drop": lambda: server.drop(what="filestream", times=1),
        "drop taken": lambda: server.drop(what="filestream", times=1, take=True),
    }[fault]()
    before = uploads(server)
    deliver(writer, rows(3, 4))
    if fault == "refuse":
        time.sleep(
            1.2
        )  # the upload tries once a second, and nobody can see a connection that is refused
    else:
        until(lambda: uploads(server) > before)
    server.heal()
    deliver(writer, rows(5, 6))

    until(lambda: writer.durable() == 6)
    writer.end(Status.FINISHED)

    assert (losses(server, run), server.run(run.id).overwritten) == (
        [1, 2, 3, 4, 5, 6],
        [],
    )


def test_a_server_that_is_gone_at_the_end_is_retryable_and_the_run_ends_later(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter]
) -> None:
    writer = opened()
    server.refuse()
    deliver(writer, rows(1, 3))

    with pytest.raises(RetryableError):
        writer.end(Status.FINISHED)
    with pytest.raises(RetryableError):
        writer.end(Status.FINISHED)
    writer.close()
    server.listen()
    again = opened()
    deliver(again, rows(1, 3), held=again.durable())
    again.end(Status.FINISHED)

    assert (losses(server, run), server.run(run.id).state) == ([1, 2, 3], "finished")


def test_too_many_rows_without_the_servers_word_are_pushed_back(
    server: WandbServer, run: RunInfo, memory: MemoryTable
) -> None:
    writer = open_run(server, run, memory, **IMPATIENT, MAX_LINES="10")
    server.hang(what="filestream")
    deliver(writer, rows(1, 8))

    with pytest.raises(RetryableError, match="not yet taken 8 rows") as pushed:
        writer.write_rows(rows(9, 12))
    server.heal()
    deliver(writer, rows(9, 12), tries=30)
    writer.end(Status.FINISHED)

    assert (pushed.value.position, losses(server, run)) == (9, list(range(1, 13)))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, BlockedError),
        (403, BlockedError),
        (404, BlockedError),
        (503, RetryableError),
    ],
)
def test_an_answer_at_opening_is_blocked_or_retryable(
    server: WandbServer,
    run: RunInfo,
    memory: MemoryTable,
    status: int,
    kind: type[Exception],
) -> None:
    settings = settings_at(server, run.folder, **IMPATIENT)
    server.answer(status, what="graphql")

    with pytest.raises(kind):
        exporter.open(run, settings, memory)


@pytest.mark.parametrize(
    ("status", "help_"),
    [
        (400, ""),
        (401, "wandb login"),
        (403, "check that the key may write to the entity and project"),
        (404, "check WANDB_BASE_URL, WANDB_ENTITY"),
        (410, ""),
    ],
)
def test_a_run_that_the_server_refuses_without_a_reason_is_blocked_with_what_to_do(
    server: WandbServer, run: RunInfo, memory: MemoryTable, status: int, help_: str
) -> None:
    server.answer(status, what="UpsertBucket")

    with pytest.raises(
        BlockedError, match=f"opening the run: returned error {status}"
    ) as refused:
        exporter.open(run, settings_at(server, run.folder, **IMPATIENT), memory)

    assert refused.value.help.startswith(help_)


def test_a_server_that_refuses_at_opening_is_retryable(
    server: WandbServer, run: RunInfo, memory: MemoryTable
) -> None:
    settings = settings_at(server, run.folder, **IMPATIENT)
    server.refuse()

    with pytest.raises(RetryableError):
        exporter.open(run, settings, memory)


def test_rollouts_whose_artifact_never_came_are_sent_again_and_rows_are_not(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter]
) -> None:
    records: list[Record] = samples.placed(
        [*rows(1, 1), samples.rollout(1), samples.row(2, {"loss": 2})]
    )
    server.answer(400, what="CommitArtifact")
    writer = opened()
    deliver(writer, records)

    until(lambda: server.lines(run.id) == 3 and writer.durable() == 1)
    writer.close()
    server.heal()
    again = opened()
    held = again.durable()
    deliver(again, records, held=held)
    again.end(Status.FINISHED)

    assert (held, losses(server, run)) == (1, [1, 2])
    assert [row["trace"] for row in server.table(run.id, "explorer/rollouts")] == [
        records[1].id
    ]


@pytest.mark.long
def test_kills_at_any_time_lose_nothing_and_double_nothing(
    server: WandbServer, tmp_path: Path
) -> None:
    records = long_job(150, rollouts_every=7)
    run = made(run_info(tmp_path, "kills", keys=keys_of(records)))
    job = WritingJob(
        {**server.environment(), **FAST},
        run,
        tmp_path / "memory.db",
        records,
        window=5,
        pause_s=0.05,
    )
    file, dice = tmp_path / "job", random.Random(2)
    file.write_bytes(pickle.dumps(job))

    for _ in range(3):
        _write(file, kill_after_s=dice.uniform(0.5, 2.5))
    _write(file, kill_after_s=None)

    held = server.run(run.id)
    tables = sorted(
        {
            key
            for row in held.history
            for key in row
            if key.startswith("explorer/rollouts")
        }
    )
    assert (losses(server, run), held.overwritten) == (
        [float(n) for n in range(1, 151)],
        [],
    )
    assert sorted(
        str(row["trace"]) for key in tables for row in server.table(run.id, key)
    ) == sorted(rollout_ids(records))


def _write(job: Path, *, kill_after_s: float | None) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    command = [sys.executable, "-m", "support.trackers.wandb_writing", str(job)]
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        try:
            process.wait(kill_after_s)
        except subprocess.TimeoutExpired:
            process.kill()
        rest = process.stdout.read()
    assert (first.split()[:1], process.returncode) in (
        (["open"], 0),
        (["open"], -signal.SIGKILL),
    ), first + rest
