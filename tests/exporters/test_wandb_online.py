"""The online W&B writer against the stand-in server: what arrives, what a fault becomes, what a restart resends."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from wandb_writing import WritingJob, keys_of, long_job, rollout_ids

from otel_bridge.errors import BlockedError, RetryableError
from otel_bridge.exporter import RunInfo, RunWriter
from otel_bridge.records import Record, Row, Status
from otel_bridge.testing import MemoryTable, deliver, open_writer, samples
from otel_bridge.testing.samples import run_info
from otel_bridge.testing.wandb_server import WandbServer
from otel_bridge_wandb import exporter
from otel_bridge_wandb.errors import LOGIN_HELP

FAST = {
    "OTEL_BRIDGE_WANDB_TRANSMIT_S": "1",
    "OTEL_BRIDGE_WANDB_POLL_S": "0.1",
    "OTEL_BRIDGE_WANDB_STALL_S": "4",
    "OTEL_BRIDGE_WANDB_INIT_TIMEOUT_S": "3",
    "OTEL_BRIDGE_WANDB_FINISH_TIMEOUT_S": "3",
}
SOON_S = 20.0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    with WandbServer() as server:
        for name, value in {**server.environment(), **FAST}.items():
            monkeypatch.setenv(name, value)
        yield server
        assert (server.errors, server.resolver.unknown) == ([], [])


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> RunInfo:
    run = run_info(tmp_path, request.node.name)
    run.folder.mkdir()
    return run


@pytest.fixture
def memory() -> MemoryTable:
    return MemoryTable()


@pytest.fixture
def opened(server: WandbServer, run: RunInfo, memory: MemoryTable) -> Callable[[], RunWriter]:
    settings = exporter.settings({**server.environment(), **FAST}, run.folder)
    return lambda: open_writer(exporter, run, settings, memory)


def until(happened: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SOON_S
    while time.monotonic() < deadline:
        if happened():
            return True
        time.sleep(0.02)
    return False


def losses(server: WandbServer, run: RunInfo) -> list[object]:
    return [row["trainer/loss"] for row in server.run(run.id).history if "trainer/loss" in row]


def rows(count: int, first: int = 1) -> list[Row]:
    return samples.placed([samples.row(n, {"loss": n}) for n in range(first, first + count)], first)


def test_the_end_of_a_run_does_not_wait_for_the_next_question_at_the_server(
    server: WandbServer, run: RunInfo, memory: MemoryTable
) -> None:
    settings = exporter.settings({**server.environment(), **FAST, "OTEL_BRIDGE_WANDB_POLL_S": "600"}, run.folder)
    writer = open_writer(exporter, run, settings, memory)
    deliver(writer, rows(3))

    writer.end(Status.FINISHED)

    assert writer.safe() == 3
    assert losses(server, run) == [1, 2, 3]


def test_more_rows_than_may_wait_are_taken_as_soon_as_the_server_holds_those_before(
    server: WandbServer, run: RunInfo, memory: MemoryTable
) -> None:
    few = {"OTEL_BRIDGE_WANDB_POLL_S": "600", "OTEL_BRIDGE_WANDB_MAX_LINES": "5"}
    settings = exporter.settings({**server.environment(), **FAST, **few}, run.folder)
    writer = open_writer(exporter, run, settings, memory)

    for first in (1, 5, 9):
        writer.write_rows(rows(4, first))
    writer.end(Status.FINISHED)

    assert losses(server, run) == list(range(1, 13))


def test_rows_arrive_as_lines_with_axis_and_event_time_and_nothing_of_the_bridge(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter]
) -> None:
    writer = opened()
    writer.write_config("trainer", {"lr": 0.1, "nan": float("nan")})
    deliver(writer, rows(2))
    writer.end(Status.FAILED)

    held = server.run(run.id)
    lines = [{key: value for key, value in row.items() if key != "_runtime"} for row in held.history]
    assert lines == [
        {"_step": n - 1, "trainer/loss": n, "trainer/step": n, "_timestamp": samples.START_UNIX_NS / 1e9 + n}
        for n in (1, 2)
    ]
    assert {name: (metric.axis, metric.hidden) for name, metric in held.metrics.items()} == {
        "trainer/step": ("", True),
        "trainer/loss": ("trainer/step", False),
    }
    assert (held.config, held.state, held.exit_code) == ({"trainer": {"lr": 0.1, "nan": "nan"}}, "failed", 1)
    assert (held.display_name, held.project) == (run.name, run.project)
    assert sorted(held.uploaded) == ["config.yaml", "wandb-summary.json"]


def test_identity_comes_from_the_run_and_never_from_the_bridges_environment(
    server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("WANDB_RUN_GROUP", "WANDB_NAME", "WANDB_NOTES", "WANDB_TAGS", "WANDB_RUN_ID", "WANDB_JOB_TYPE"):
        monkeypatch.setenv(name, "of-the-bridge")
    identity = {"rl.wandb.run_id": "chosen", "rl.wandb.project": "a/b", "rl.wandb.tags": "x, y", "rl.wandb.notes": "n"}
    run = run_info(tmp_path, "identity", group="grouped", job_type="train", identity=identity)
    run.folder.mkdir()

    writer = open_writer(exporter, run, exporter.settings({**server.environment(), **FAST}, tmp_path), MemoryTable())
    writer.end(Status.FINISHED)

    held = server.run("chosen")
    assert (held.project, held.group, held.job_type, held.notes, held.tags) == (
        "a-b",
        "grouped",
        "train",
        "n",
        ["x", "y"],
    )


def test_safe_follows_the_lines_that_the_server_holds(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter], memory: MemoryTable
) -> None:
    server.hang(what="filestream")
    writer = opened()
    deliver(writer, rows(5))
    before = (writer.safe(), [key for key, _ in memory.items("line/")])

    server.heal()
    held = until(lambda: writer.safe() == 5)
    writer.close()

    assert (before, held) == ((0, ["line/0000000000000000"]), True)
    assert list(memory.items("line/")) == []


def test_every_known_key_is_bound_again_after_a_resume_before_any_row(server: WandbServer, tmp_path: Path) -> None:
    keys = {"trainer/loss": "trainer/step", "explorer/reward/mean": "explorer/step", "plain": "step", "a*b": "step"}
    run = run_info(tmp_path, "resumed", keys=keys)
    run.folder.mkdir()
    settings, memory = exporter.settings({**server.environment(), **FAST}, tmp_path), MemoryTable()

    for _ in range(2):
        writer = open_writer(exporter, run, settings, memory)
        writer.close()

    axes = {name: metric.axis for name, metric in server.run(run.id).metrics.items() if not metric.hidden}
    assert axes == keys
    assert server.run(run.id).state == "running"


def test_an_upload_that_died_of_403_blocks_and_goes_on_after_reopening(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter]
) -> None:
    writer = opened()
    server.answer(403, what="filestream")
    deliver(writer, rows(3))

    def blocked() -> bool:
        try:
            writer.safe()
        except BlockedError as exc:
            return "403" in str(exc)
        return False

    assert until(blocked)
    with pytest.raises(BlockedError, match="403"):
        writer.write_rows(rows(1, 4))
    writer.close()
    server.heal()
    again = opened()
    deliver(again, rows(4), held=again.safe())
    again.end(Status.FINISHED)

    assert losses(server, run) == [1, 2, 3, 4]


@pytest.mark.slow
def test_an_upload_that_stands_still_at_a_server_that_answers_is_opened_anew(
    server: WandbServer, run: RunInfo, memory: MemoryTable
) -> None:
    impatient = {"OTEL_BRIDGE_WANDB_STALL_S": "3", "OTEL_BRIDGE_WANDB_FINISH_TIMEOUT_S": "1"}
    settings = exporter.settings({**server.environment(), **FAST, **impatient}, run.folder)
    writer = open_writer(exporter, run, settings, memory)
    deliver(writer, rows(3))
    assert until(lambda: writer.safe() == 3)
    server.hang(what="filestream")
    deliver(writer, rows(4, 4))

    said: list[str] = []

    def dead() -> bool:
        try:
            writer.safe()
        except RetryableError as exc:
            said.append(str(exc))
        return bool(said)

    assert until(dead)
    with pytest.raises(RetryableError, match="Timed out finishing run"):
        writer.close()
    server.heal()
    again = open_writer(exporter, run, settings, memory)
    deliver(again, rows(9), held=again.safe())
    again.end(Status.FINISHED)

    assert said == ["W&B answers, but 4 lines did not arrive within 3 s"]
    assert losses(server, run) == list(range(1, 10))
    assert (server.run(run.id).overwritten, server.run(run.id).state) == ([], "finished")


@pytest.mark.parametrize("fault", ["503", "429", "refuse", "hang", "drop", "drop taken"])
def test_an_outage_of_the_upload_loses_and_doubles_nothing(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter], fault: str
) -> None:
    writer = opened()
    deliver(writer, rows(2))
    {
        "503": lambda: server.answer(503, what="filestream", times=2),
        "429": lambda: server.answer(429, what="filestream", times=1, retry_after_s=1),
        "refuse": server.refuse,
        "hang": lambda: server.hang(what="filestream"),
        "drop": lambda: server.drop(what="filestream", times=1),
        "drop taken": lambda: server.drop(what="filestream", times=1, take=True),
    }[fault]()
    deliver(writer, rows(2, 3))
    time.sleep(1.2)  # the upload meets the fault at its next interval
    server.heal()
    deliver(writer, rows(2, 5))

    held = until(lambda: writer.safe() == 6)
    writer.end(Status.FINISHED)

    assert (held, losses(server, run), server.run(run.id).overwritten) == (True, [1, 2, 3, 4, 5, 6], [])


def test_a_server_that_is_gone_at_the_end_is_retryable_and_the_run_ends_later(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter]
) -> None:
    writer = opened()
    server.refuse()
    deliver(writer, rows(3))

    with pytest.raises(RetryableError):
        writer.end(Status.FINISHED)
    with pytest.raises(RetryableError):
        writer.end(Status.FINISHED)
    writer.close()
    server.listen()
    again = opened()
    deliver(again, rows(3), held=again.safe())
    again.end(Status.FINISHED)

    assert (losses(server, run), server.run(run.id).state) == ([1, 2, 3], "finished")


def test_too_many_rows_without_the_servers_word_are_pushed_back(
    server: WandbServer, run: RunInfo, memory: MemoryTable
) -> None:
    environment = {**server.environment(), **FAST, "OTEL_BRIDGE_WANDB_MAX_LINES": "10"}
    writer = open_writer(exporter, run, exporter.settings(environment, run.folder), memory)
    server.hang(what="filestream")
    deliver(writer, rows(8))

    with pytest.raises(RetryableError, match="not yet taken 8 rows") as pushed:
        writer.write_rows(rows(4, 9))
    server.heal()
    deliver(writer, rows(4, 9), tries=30)
    writer.end(Status.FINISHED)

    assert (pushed.value.position, losses(server, run)) == (9, list(range(1, 13)))


@pytest.mark.parametrize(
    ("status", "kind"), [(401, BlockedError), (403, BlockedError), (404, BlockedError), (503, RetryableError)]
)
def test_an_answer_at_opening_is_blocked_or_retryable(
    server: WandbServer, run: RunInfo, memory: MemoryTable, status: int, kind: type[Exception]
) -> None:
    settings = exporter.settings({**server.environment(), **FAST}, run.folder)
    server.answer(status, what="graphql")

    with pytest.raises(kind):
        exporter.open(run, settings, memory)


def test_a_server_that_refuses_at_opening_is_retryable(server: WandbServer, run: RunInfo, memory: MemoryTable) -> None:
    settings = exporter.settings({**server.environment(), **FAST}, run.folder)
    server.refuse()

    with pytest.raises(RetryableError):
        exporter.open(run, settings, memory)


def test_without_a_key_the_writer_is_blocked_with_the_command_that_helps(
    server: WandbServer, run: RunInfo, memory: MemoryTable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    settings = exporter.settings({"WANDB_BASE_URL": server.url, **FAST}, run.folder)

    with pytest.raises(BlockedError) as blocked:
        exporter.open(run, settings, memory)

    assert blocked.value.help == LOGIN_HELP == "wandb login, or WANDB_MODE=offline"


def test_a_run_that_somebody_else_writes_is_not_opened(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter], memory: MemoryTable
) -> None:
    opened().close()
    stranger = exporter.settings({**server.environment(), **FAST}, run.folder)

    with pytest.raises(BlockedError, match="written by another process") as blocked:
        exporter.open(run, stranger, MemoryTable())

    assert blocked.value.help.endswith(
        "for one run of several machines set OTEL_EXPORTER_OTLP_ENDPOINT to one `otel-bridge serve`"
    )


def test_many_runs_in_one_process_do_not_mix(server: WandbServer, tmp_path: Path) -> None:
    runs = [run_info(tmp_path, f"run {n}") for n in range(4)]
    settings = exporter.settings({**server.environment(), **FAST}, tmp_path)
    writers: list[RunWriter] = []
    for run in runs:
        run.folder.mkdir()
        writers.append(open_writer(exporter, run, settings, MemoryTable()))

    for turn in range(3):
        for n, writer in enumerate(writers):
            deliver(writer, samples.placed([samples.row(turn, {"loss": n * 10 + turn})], turn + 1))
    for writer in writers:
        writer.end(Status.FINISHED)

    assert [losses(server, run) for run in runs] == [[n * 10, n * 10 + 1, n * 10 + 2] for n in range(4)]


def test_the_table_of_rollouts_goes_on_after_a_resume(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter]
) -> None:
    rollouts = samples.placed([samples.rollout(n, step=n) for n in range(1, 5)])

    for part in (rollouts[:2], rollouts[2:]):
        writer = opened()
        deliver(writer, part)
        writer.end(Status.FINISHED)

    table = server.table(run.id, "explorer/rollouts")
    increments = [row["explorer/rollouts"] for row in server.run(run.id).history]
    assert [row["trace"] for row in table] == [rollout.id for rollout in rollouts]
    assert [value["increment_num"] for value in increments if isinstance(value, dict)] == [0, 1]
    assert table[0] == {
        "step": 1, "split": "train", "group": "p0", "sample": 1, "prompt": table[0]["prompt"], "answer": "It is 2.",
        "reward": 0.75, "advantage": 0.125, "finish_reason": "stop", "policy_version": 1, "turns": 2, "messages": 5,
        "tools": 1, "duration_s": 4.0, "trace": rollouts[0].id, "rewards": '{"format": 0.25, "answer": 0.5}',
        "metadata": '{"difficulty": "easy", "temperature": 0.7}', "error": None,
    }  # fmt: skip


def test_rollouts_whose_artifact_never_came_are_sent_again_and_rows_are_not(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter]
) -> None:
    records: list[Record] = samples.placed([*rows(1), samples.rollout(1), samples.row(2, {"loss": 2})])
    server.answer(400, what="CommitArtifact")
    writer = opened()
    deliver(writer, records)

    stuck = until(lambda: server.lines(run.id) == 3 and writer.safe() == 1)
    writer.close()
    server.heal()
    again = opened()
    held = again.safe()
    deliver(again, records, held=held)
    again.end(Status.FINISHED)

    assert (stuck, held, losses(server, run)) == (True, 1, [1, 2])
    assert [row["trace"] for row in server.table(run.id, "explorer/rollouts")] == [records[1].id]


@pytest.mark.slow
def test_kills_at_any_time_lose_nothing_and_double_nothing(server: WandbServer, tmp_path: Path) -> None:
    records = long_job(150, rollouts_every=7)
    run = run_info(tmp_path, "kills", keys=keys_of(records))
    run.folder.mkdir()
    job = WritingJob({**server.environment(), **FAST}, run, tmp_path / "memory.db", records, window=5, pause_s=0.05)
    file, dice = tmp_path / "job", random.Random(2)
    file.write_bytes(pickle.dumps(job))

    for _ in range(3):
        _write(file, kill_after_s=dice.uniform(0.5, 2.5))
    _write(file, kill_after_s=None)

    held = server.run(run.id)
    tables = sorted({key for row in held.history for key in row if key.startswith("explorer/rollouts")})
    assert (losses(server, run), held.overwritten) == ([float(n) for n in range(1, 151)], [])
    assert sorted(str(row["trace"]) for key in tables for row in server.table(run.id, key)) == sorted(
        rollout_ids(records)
    )


def _write(job: Path, *, kill_after_s: float | None) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "wandb_writing", str(job)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        try:
            process.wait(kill_after_s)
        except subprocess.TimeoutExpired:
            process.kill()
        rest = process.stdout.read()
    assert (first.split()[:1], process.returncode) in ((["open"], 0), (["open"], -signal.SIGKILL)), first + rest
