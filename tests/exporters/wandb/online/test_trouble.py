"""Online W&B in trouble, to the end: history, definitions, config and state that the stand-in holds afterwards."""

from __future__ import annotations

import dataclasses
import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from otel_bridge.errors import BlockedError, RetryableError
from otel_bridge.exporter import RunInfo, RunWriter, WritesSummary
from otel_bridge.records import Json, Row, Status
from otel_bridge.testing import MemoryTable, deliver, open_writer, samples
from otel_bridge.testing.samples import run_info
from otel_bridge_wandb import exporter
from otel_bridge_wandb.definitions import Definitions
from otel_bridge_wandb.sdk import service_process
from support.bridge.bridge_doubles import until
from support.trackers import wandb_online_runs as online
from support.trackers.wandb_backend.server import WandbServer
from support.trackers.wandb_online_runs import blocked, losses, made, rows

server, memory, opened = online.server, online.memory, online.opened


@pytest.fixture
def limits() -> Mapping[str, str]:
    return {"INIT_TIMEOUT_S": "5", "FINISH_TIMEOUT_S": "5"}


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> RunInfo:
    return made(
        run_info(tmp_path, request.node.name, keys={"trainer/loss": "trainer/step"})
    )


def whole(server: WandbServer, run: RunInfo) -> dict[str, object]:
    """All that the server was to hold in the end."""
    held = server.run(run.id)
    return {
        "losses": [row["trainer/loss"] for row in held.history],
        "axes": {name: metric.axis for name, metric in held.metrics.items()},
        "config": held.config,
        "state": held.state,
        "overwritten": held.overwritten,
    }


def expected(losses: list[int]) -> dict[str, object]:
    return {
        "losses": losses,
        "axes": {"trainer/loss": "trainer/step", "trainer/step": ""},
        "config": {"trainer": {"lr": 0.1}},
        "state": "finished",
        "overwritten": [],
    }


@pytest.mark.parametrize("limits", [{"FINISH_TIMEOUT_S": "1"}])
def test_the_reason_of_an_end_that_failed_is_shown_until_another_writer_is_open(
    server: WandbServer, opened: Callable[[], RunWriter]
) -> None:
    writer = opened()
    deliver(writer, rows(1, 3))
    server.answer(503, what="filestream", times=10**6)

    reasons: list[str] = []
    for _ in range(3):
        with pytest.raises(RetryableError) as failed:
            writer.end(Status.FINISHED)
        reasons.append(str(failed.value))

    assert reasons == ["W&B, ending the run: Timed out finishing run."] * 3


@pytest.mark.slow
@pytest.mark.parametrize("status", [403, 429, 503])
@pytest.mark.parametrize("what", ["filestream", "UpsertBucket"])
def test_after_a_fault_the_run_is_whole(
    server: WandbServer,
    run: RunInfo,
    opened: Callable[[], RunWriter],
    status: int,
    what: str,
) -> None:
    writer = opened()
    writer.write_config("trainer", {"lr": 0.1})
    server.answer(
        status,
        what=what,
        times=1 if status == 403 else 3,
        retry_after_s=1 if status == 429 else None,
    )
    deliver(writer, rows(1, 5))
    if (status, what) == (
        403,
        "filestream",
    ):  # one such answer ends wandb's upload for good
        until(lambda: blocked(writer, "403"))
        writer.close()
        writer = opened()
        writer.write_config("trainer", {"lr": 0.1})
    else:
        until(lambda: writer.durable() == 5)
    deliver(writer, rows(1, 8), held=writer.durable())
    try:
        writer.end(Status.FINISHED)
    except RetryableError:  # as the bridge does
        server.heal()
        writer = opened()
        writer.write_config("trainer", {"lr": 0.1})
        deliver(writer, rows(1, 8), held=writer.durable())
        writer.end(Status.FINISHED)

    assert whole(server, run) == expected([1, 2, 3, 4, 5, 6, 7, 8])


def test_after_a_kill_of_wandbs_service_the_next_writers_of_all_runs_go_on(
    server: WandbServer,
    run: RunInfo,
    opened: Callable[[], RunWriter],
    caplog: pytest.LogCaptureFixture,
) -> None:
    writer = opened()
    writer.write_config("trainer", {"lr": 0.1})
    deliver(writer, rows(1, 3))
    other_run = made(run_info(run.folder, "other"))
    other_memory = MemoryTable()
    others = online.open_run(server, other_run, other_memory)
    deliver(others, rows(1, 2))
    session = importlib.import_module("wandb").setup()
    process = service_process(session)
    assert process is not None
    process.kill()
    process.wait()

    # As the bridge does: after some failures in a row it opens another writer.
    for writer_of_run in (writer, others):
        until(partial(_is_lost, writer_of_run))
    for former in (writer, others):
        with suppress(RetryableError):
            former.close()
    again = opened()
    again.write_config("trainer", {"lr": 0.1})
    deliver(again, rows(1, 5), held=again.durable())
    again.end(Status.FINISHED)
    others = online.open_run(server, other_run, other_memory)
    deliver(others, rows(1, 2), held=others.durable())
    others.end(Status.FINISHED)

    assert whole(server, run) == expected([1, 2, 3, 4, 5])
    assert online.losses(server, other_run) == [1, 2]
    assert "wandb's service has ended (-9)" in caplog.text


def _is_lost(writer: RunWriter) -> bool:
    """Return whether *writer* takes no row now; a person is not asked for help."""
    try:
        writer.write_rows(rows(9, 9))
    except RetryableError:
        return True
    return False


def test_a_wrong_key_blocks_and_once_mended_all_arrives(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter]
) -> None:
    server.answer(401)
    with pytest.raises(BlockedError) as refused:
        opened()

    server.heal()
    writer = opened()
    writer.write_config("trainer", {"lr": 0.1})
    deliver(writer, rows(1, 3))
    writer.end(Status.FINISHED)

    assert "wandb login" in refused.value.help
    assert whole(server, run) == expected([1, 2, 3])


def test_a_rewound_job_shows_both_attempts(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter]
) -> None:
    writer = opened()
    deliver(writer, rows(150, 154, at=1))
    writer.end(Status.KILLED)
    again = opened()
    again.write_config("trainer", {"attempt": 2})
    second = [
        samples.row(step, {"attempt": 2, "loss": -step}, attempt=2)
        for step in range(100, 103)
    ]
    deliver(again, samples.placed(second, 6), held=again.durable())
    again.end(Status.FINISHED)

    held = server.run(run.id)
    shown = [
        (row["trainer/step"], row["trainer/loss"], row.get("trainer/attempt"))
        for row in held.history
    ]
    assert shown == [(step, step, None) for step in range(150, 155)] + [
        (s, -s, 2) for s in range(100, 103)
    ]
    assert (held.config, held.state) == ({"trainer": {"attempt": 2}}, "finished")
    assert held.metrics["trainer/attempt"].axis == "trainer/step"


OTHER_RUN = """
import sys, wandb
run = wandb.init(id=sys.argv[1], project=sys.argv[2], resume="allow", mode="online",
                 settings=wandb.Settings(x_file_stream_transmit_interval=1.0, silent=True, console="off"))
for n in range(3):
    run.log({"mine": n})
print("logged", flush=True)
sys.stdin.readline()
run.finish()
"""


@pytest.mark.slow
def test_a_trainer_that_opens_our_run_itself_blocks_us_until_it_is_done(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter]
) -> None:
    writer = opened()
    deliver(writer, rows(1, 3))
    until(lambda: writer.durable() == 3)
    command = [sys.executable, "-c", OTHER_RUN, run.id, run.project]
    environment = {
        name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"
    }
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=run.folder,
    ) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "logged\n"
        until(lambda: server.lines(run.id) == 6)
        deliver(writer, rows(4, 4))
        until(lambda: blocked(writer, "another process writes this run too"))
        with pytest.raises(BlockedError, match="another process"):
            writer.close()
        with pytest.raises(
            BlockedError, match="another process writes this run too"
        ) as still:
            opened()
        trainer.communicate("\n")
    again = opened()
    deliver(again, rows(5, 5), held=again.durable())
    again.end(Status.FINISHED)

    assert "wandb.init()" in still.value.help
    assert server.run(run.id).history[-1]["trainer/loss"] == 5


ODD = (
    "a.b",
    "a.b/c.d",
    "q\"uo'te",
    "sl//ash/",
    "emo😀ji",
    "sp ace",
    "back\\slash",
    "st*r",
    "k" * 10_000,
    "_step",
    "step",
)


def test_every_odd_key_arrives_as_it_is_on_its_axis(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter]
) -> None:
    writer = opened()
    values: dict[str, Any] = {
        f"trainer/{key}": number for number, key in enumerate(ODD)
    }
    row = Row("m:odd:1", "trainer", 1, "trainer/step", samples.START_UNIX_NS, values)
    deliver(writer, samples.placed([row]))
    writer.end(Status.FINISHED)

    shown = {
        key: f"trainer/{key}" if key != "step" else "trainer/step_value" for key in ODD
    }
    held = server.run(run.id)
    assert [held.history[0][name] for name in shown.values()] == list(range(len(ODD)))
    assert held.history[0]["trainer/step"] == 1
    assert {held.metrics[name].axis for name in shown.values()} == {"trainer/step"}
    sent = {str(entry.get("1")) for entry in held.internal_config["m"]}
    assert {"trainer/a\\.b", "trainer/a\\.b/c\\.d"} <= sent, (
        "else W&B would look for nested maps"
    )


@pytest.mark.parametrize("limits", [{"FINISH_TIMEOUT_S": "120"}])
def test_a_config_of_ten_thousand_entries_arrives(
    server: WandbServer, run: RunInfo, opened: Callable[[], RunWriter]
) -> None:
    keys = [f"key.{number}/{'x' * 20}" for number in range(10_000)]
    config: dict[str, Json] = {
        key: {"deep": [at, float("inf"), None, "é\ud800"]}
        for at, key in enumerate(keys)
    }
    writer = opened()
    writer.write_config("trainer", config)
    writer.end(Status.FINISHED)

    held = server.run(run.id).config["trainer"]
    assert held == {
        key: {"deep": [at, "inf", None, "é?"]} for at, key in enumerate(keys)
    }


@pytest.mark.parametrize(
    ("job", "bridge", "said"),
    [
        ("", "must", "WANDB_RESUME=must, but there is no run"),
        ("Must", "allow", "WANDB_RESUME=must, but there is no run"),
        ("allow", "must", ""),
        ("of course", "allow", ""),
    ],
)
def test_wandb_resume_of_the_job_is_honoured_wherever_the_bridge_is(
    server: WandbServer,
    run: RunInfo,
    memory: MemoryTable,
    job: str,
    bridge: str,
    said: str,
) -> None:
    settings = exporter.read_settings(
        {**server.environment(), **online.FAST, "WANDB_RESUME": bridge}, run.folder
    )
    run = dataclasses.replace(run, identity={"rl.wandb.resume": job} if job else {})
    if not said:
        open_writer(exporter, run, settings, memory).end(Status.FINISHED)
        return
    with pytest.raises(BlockedError, match=said):
        exporter.open(run, settings, memory)


def test_definitions_that_cannot_be_sent_behind_the_last_row_are_retried_and_the_rows_are_there_once(
    server: WandbServer,
    opened: Callable[[], RunWriter],
    run: RunInfo,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = opened()

    def gone(definitions: Definitions, *, now: bool = False) -> None:
        raise ConnectionError("the service is gone")

    with monkeypatch.context() as patched:
        patched.setattr(Definitions, "send_definitions", gone)
        with pytest.raises(RetryableError, match="the service is gone") as raised:
            writer.write_rows(rows(1, 3))
    writer.write_rows(rows(3, 4))
    writer.end(Status.FINISHED)

    assert (raised.value.position, losses(server, run)) == (3, [1, 2, 3, 4])


def test_a_summary_that_a_row_replaced_before_the_call_failed_is_set_again(
    server: WandbServer,
    opened: Callable[[], RunWriter],
    run: RunInfo,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = opened()
    assert isinstance(writer, WritesSummary)
    writer.write_summary("trainer", {"trainer/best": 7.0})
    given = samples.placed([samples.row(1, {"best": 1.0}), samples.row(2, {"loss": 2})])
    of_wandb: Any = importlib.import_module("wandb.sdk.wandb_run").Run
    log = of_wandb.log

    def log_best_alone(run: object, line: Mapping[str, object]) -> None:
        if "trainer/best" not in line:
            raise ConnectionError("the service is gone")
        log(run, line)

    with monkeypatch.context() as patched:
        patched.setattr(of_wandb, "log", log_best_alone)
        with pytest.raises(RetryableError):
            writer.write_rows(given)
    writer.write_rows(given[1:])
    writer.end(Status.FINISHED)

    assert server.run(run.id).summary["trainer/best"] == 7
    assert losses(server, run) == [2]
