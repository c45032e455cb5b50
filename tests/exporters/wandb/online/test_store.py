"""The online W&B writer against the stand-in server: what arrives, whose run it is, and what a restart goes on with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from otel_bridge.errors import BlockedError
from otel_bridge.exporter import RunInfo, RunWriter
from otel_bridge.records import Status
from otel_bridge.testing import MemoryTable, deliver, samples
from otel_bridge.testing.samples import run_info
from otel_bridge_wandb import exporter
from otel_bridge_wandb.errors import LOGIN_HELP
from otel_bridge_wandb.versions import can_leave_open
from support.media_samples import image, media, table, text
from support.trackers import wandb_online_runs as online
from support.trackers.wandb_backend.server import WandbServer
from support.trackers.wandb_online_runs import losses, made, open_run, rows, settings_at

server, run, memory, limits, opened = (
    online.server,
    online.run,
    online.memory,
    online.limits,
    online.opened,
)


def test_the_end_of_a_run_does_not_wait_for_the_next_question_at_the_server(
    server: WandbServer, run: RunInfo, memory: MemoryTable
) -> None:
    writer = open_run(server, run, memory, POLL_S="600")
    deliver(writer, rows(1, 3))

    writer.end(Status.FINISHED)

    assert writer.durable() == 3
    assert losses(server, run) == [1, 2, 3]


@pytest.mark.parametrize("max_lines", ["5", "3"])
def test_more_rows_than_may_wait_are_taken_as_soon_as_the_server_holds_those_before(
    server: WandbServer, run: RunInfo, memory: MemoryTable, max_lines: str
) -> None:
    writer = open_run(server, run, memory, POLL_S="600", MAX_LINES=max_lines)

    for first in (1, 5, 9):
        writer.write_rows(rows(first, first + 3))
    writer.end(Status.FINISHED)

    assert losses(server, run) == list(range(1, 13))


def test_dead_letters_that_are_tried_again_arrive_behind_all_that_was_logged(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter]
) -> None:
    writer = opened()
    deliver(writer, rows(1, 3))
    writer.end(Status.FINISHED)

    again = opened()
    at_open = again.durable()
    # The bridge gives them one by one, without a position.
    for step in (7, 8):
        again.write_rows(rows(step, step, at=0))
    for number in (1, 2):
        again.write_rollouts([samples.rollout(number, step=1)])
    again.end(Status.FINISHED)

    assert losses(server, run) == [1, 2, 3, 7, 8]
    traces = [row["trace"] for row in server.table(run.id, "explorer/rollouts")]
    assert traces == [samples.rollout(number, step=1).id for number in (1, 2)]
    assert (at_open, again.durable()) == (3, 3)


def test_rows_arrive_as_lines_with_axis_and_event_time_and_nothing_of_the_bridge(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter]
) -> None:
    writer = opened()
    writer.write_config("trainer", {"lr": 0.1, "nan": float("nan")})
    deliver(writer, rows(1, 2))
    writer.end(Status.FAILED)

    held = server.run(run.id)
    lines = [
        {key: value for key, value in row.items() if key != "_runtime"}
        for row in held.history
    ]
    assert lines == [
        {
            "_step": n - 1,
            "trainer/loss": n,
            "trainer/step": n,
            "_timestamp": samples.START_UNIX_NS / 1e9 + n,
        }
        for n in (1, 2)
    ]
    assert {
        name: (metric.axis, metric.hidden) for name, metric in held.metrics.items()
    } == {
        "trainer/step": ("", True),
        "trainer/loss": ("trainer/step", False),
    }
    assert (held.config, held.state, held.exit_code) == (
        {"trainer": {"lr": 0.1, "nan": "nan"}},
        "failed",
        1,
    )
    assert (held.display_name, held.project) == (run.name, run.project)
    assert sorted(held.uploaded) == ["config.yaml", "wandb-summary.json"]


def test_identity_comes_from_the_run_and_never_from_the_bridges_environment(
    server: WandbServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "WANDB_RUN_GROUP",
        "WANDB_NAME",
        "WANDB_NOTES",
        "WANDB_TAGS",
        "WANDB_RUN_ID",
        "WANDB_JOB_TYPE",
    ):
        monkeypatch.setenv(name, "of-the-bridge")
    identity = {
        "rl.wandb.run_id": "chosen",
        "rl.wandb.project": "a/b",
        "rl.wandb.tags": "x, y",
        "rl.wandb.notes": "n",
    }
    run = made(
        run_info(
            tmp_path, "identity", group="grouped", job_type="train", identity=identity
        )
    )

    open_run(server, run, MemoryTable()).end(Status.FINISHED)

    held = server.run("chosen")
    assert (held.project, held.group, held.job_type, held.notes, held.tags) == (
        "a-b",
        "grouped",
        "train",
        "n",
        ["x", "y"],
    )


def test_every_known_key_is_bound_again_after_a_resume_before_any_row(
    server: WandbServer, tmp_path: Path
) -> None:
    keys = {
        "trainer/loss": "trainer/step",
        "explorer/reward/mean": "explorer/step",
        "plain": "step",
        "a*b": "step",
    }
    run, memory = made(run_info(tmp_path, "resumed", keys=keys)), MemoryTable()

    for _ in range(2):
        open_run(server, run, memory).close()

    axes = {
        name: metric.axis
        for name, metric in server.run(run.id).metrics.items()
        if not metric.hidden
    }
    assert axes == keys
    assert server.run(run.id).state == ("running" if can_leave_open() else "finished")


def test_without_a_key_the_writer_is_blocked_with_the_command_that_helps(
    server: WandbServer,
    run: RunInfo,
    memory: MemoryTable,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    settings = exporter.read_settings(
        {"WANDB_BASE_URL": server.url, **online.FAST}, run.folder
    )

    with pytest.raises(BlockedError) as blocked:
        exporter.open(run, settings, memory)

    assert blocked.value.help == LOGIN_HELP == "wandb login, or WANDB_MODE=offline"


def test_a_run_that_somebody_else_writes_is_not_opened(
    server: WandbServer,
    run: RunInfo,
    opened: Callable[[], RunWriter],
    memory: MemoryTable,
) -> None:
    writer = opened()

    with pytest.raises(BlockedError, match="written by another process") as blocked:
        exporter.open(run, settings_at(server, run.folder), MemoryTable())

    writer.close()
    assert blocked.value.help.endswith(
        "for one run of several machines set OTEL_EXPORTER_OTLP_ENDPOINT to one `otel-bridge serve`"
    )


def test_many_runs_in_one_process_do_not_mix(
    server: WandbServer, tmp_path: Path
) -> None:
    runs = [made(run_info(tmp_path, f"run {n}")) for n in range(4)]
    writers = [open_run(server, run, MemoryTable()) for run in runs]

    for turn in range(3):
        for n, writer in enumerate(writers):
            deliver(
                writer,
                samples.placed([samples.row(turn, {"loss": n * 10 + turn})], turn + 1),
            )
    for writer in writers:
        writer.end(Status.FINISHED)

    assert [losses(server, run) for run in runs] == [
        [n * 10, n * 10 + 1, n * 10 + 2] for n in range(4)
    ]


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
    assert [
        value["increment_num"] for value in increments if isinstance(value, dict)
    ] == [0, 1]
    assert table[0] == {
        "step": 1, "split": "train", "group": "p0", "sample": 1, "prompt": table[0]["prompt"], "answer": "It is 2.",
        "reward": 0.75, "advantage": 0.125, "finish_reason": "stop", "policy_version": 1, "turns": 2, "messages": 5,
        "tools": 1, "duration_s": 4.0, "trace": rollouts[0].id, "rewards": '{"format": 0.25, "answer": 0.5}',
        "metadata": '{"difficulty": "easy", "temperature": 0.7}', "error": None,
        "staleness": 0, "trajectory": None, "dataset": "gsm8k",
        "facts": '{"dataset_index": 101, "prompt_index": 0, "batch_index": 1, "tools": {"calls": 1, "errors": 0}, '
        '"messages": {"4": {"tool_call_id": "call_1"}}}',
    }  # fmt: skip


def test_media_are_lines_of_the_history_with_their_files_and_a_restart_goes_on_behind_them(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter]
) -> None:
    records = [
        *rows(1, 2),
        media("one", image(1, "first"), position=3),
        media(
            "t", table(["a", "p"], [[1, {"media": 0}]]), cells=[image(2)], position=4
        ),
        *rows(5, 6),
        media("page", text("<p>hi</p>", "html"), position=7),
    ]
    first = opened()
    deliver(first, records[:4])
    first.close()

    second = opened()
    held = second.durable()
    deliver(second, [record for record in records if record.position > (held or 0)])
    second.end(Status.FINISHED)

    assert (held, second.durable()) == (4, 7)
    stored = server.run(run.id)
    shown = {
        key: value
        for line in stored.history
        for key, value in line.items()
        if isinstance(value, dict)
    }
    assert losses(server, run) == [1, 2, 5, 6]
    assert {key: value["_type"] for key, value in shown.items() if key != "_wandb"} == {
        "trainer/one": "image-file", "trainer/t": "table-file", "trainer/page": "html-file",
    }  # fmt: skip
    assert stored.uploaded[shown["trainer/one"]["path"]] == image(1).data
    assert b"<p>hi</p>" in stored.uploaded[shown["trainer/page"]["path"]]
    assert shown["trainer/t"]["path"] in stored.uploaded
