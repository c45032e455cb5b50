"""Whose run it is at the server: WANDB_RESUME in every bridge of a folder, and starts that fail before they succeed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_bridge.errors import BlockedError, RetryableError
from otel_bridge.exporter import RunInfo, RunWriter
from otel_bridge.records import Status
from otel_bridge.testing import MemoryTable, deliver
from otel_bridge.testing.samples import run_info
from otel_bridge_wandb import exporter
from otel_bridge_wandb.online.ownership import RunOwnership
from otel_bridge_wandb.online.uploads import ServerRun
from support.bridge.bridge_doubles import until
from support.trackers import wandb_online_runs as online
from support.trackers.wandb_backend.server import WandbServer
from support.trackers.wandb_backend.state import WandbRun
from support.trackers.wandb_online_runs import losses, made, open_run, rows, settings_at

server, memory, opened, limits = (
    online.server,
    online.memory,
    online.opened,
    online.limits,
)


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> RunInfo:
    return made(run_info(tmp_path, request.node.name))


def job(tmp_path: Path, run: RunInfo, resume: str) -> RunInfo:
    """Another job, in a folder of its own, that names the id of *run* and sets WANDB_RESUME."""
    folder = tmp_path / "another-job"
    identity = {"rl.wandb.run_id": run.id, "rl.wandb.resume": resume}
    return made(dataclasses.replace(run, folder=folder, identity=identity))


def write(writer: RunWriter, first: int, last: int, held: int = 0) -> None:
    deliver(writer, rows(first, last), held=held)
    writer.end(Status.FINISHED)


def test_resume_never_keeps_every_bridge_of_the_folder_out_of_a_run_that_exists(
    server: WandbServer, run: RunInfo, memory: MemoryTable, tmp_path: Path
) -> None:
    write(open_run(server, run, MemoryTable()), 1, 3)
    second = job(tmp_path, run, "never")
    settings = settings_at(server, second.folder)

    refusals: list[BlockedError] = []
    for _attempt in range(
        3
    ):  # the first start, its retry, the next bridge of the folder
        with pytest.raises(BlockedError) as refused:
            exporter.open(second, settings, memory)
        refusals.append(refused.value)

    assert [str(error) for error in refusals] == [
        f"W&B: WANDB_RESUME=never, but run {run.id} exists and this job did not create it"
    ] * 3
    assert "WANDB_RUN_ID" in refusals[0].help
    assert (losses(server, run), server.run(run.id).state) == ([1, 2, 3], "finished")


def test_resume_never_recovers_once_the_run_in_its_way_is_gone_and_then_goes_on_in_its_own(
    server: WandbServer, run: RunInfo, memory: MemoryTable, tmp_path: Path
) -> None:
    write(open_run(server, run, MemoryTable()), 1, 3)
    second = job(tmp_path, run, "never")
    with pytest.raises(BlockedError):
        exporter.open(second, settings_at(server, second.folder), memory)
    server.store.runs.clear()

    write(open_run(server, second, memory), 11, 12)
    again = open_run(server, second, memory)
    deliver(again, rows(11, 14), held=again.durable())
    again.end(Status.FINISHED)

    assert losses(server, run) == [11, 12, 13, 14]


def test_resume_must_recovers_once_the_run_exists(
    server: WandbServer, run: RunInfo, memory: MemoryTable, tmp_path: Path
) -> None:
    second = job(tmp_path, run, "must")
    settings = settings_at(server, second.folder)
    for _attempt in range(2):
        with pytest.raises(
            BlockedError, match="WANDB_RESUME=must, but there is no run"
        ):
            exporter.open(second, settings, memory)
    write(open_run(server, run, MemoryTable()), 1, 2)

    write(open_run(server, second, memory), 3, 4)

    assert losses(server, run) == [1, 2, 3, 4]


@pytest.mark.parametrize("resume", ["allow", "auto"])
def test_resume_allow_and_auto_go_on_in_the_run_whose_id_the_job_names(
    server: WandbServer, run: RunInfo, memory: MemoryTable, tmp_path: Path, resume: str
) -> None:
    write(open_run(server, run, MemoryTable()), 1, 2)
    second = job(tmp_path, run, resume)

    write(open_run(server, second, memory), 3, 4)

    assert losses(server, run) == [1, 2, 3, 4]
    assert not list(second.folder.rglob("wandb-resume.json"))


def logged_by_another_program(
    server: WandbServer, run: RunInfo, *steps: int
) -> WandbRun:
    """Return *run* as a program left it that gave its lines these steps, and ended."""
    key = ("stand-in", run.project, run.id)
    left = server.store.runs.setdefault(key, WandbRun(*key, "left"))
    left.lines += [json.dumps({"_step": step}) for step in steps]
    left.state = "finished"
    return left


def test_lines_are_counted_behind_those_of_a_program_that_chose_its_steps(
    server: WandbServer, run: RunInfo, memory: MemoryTable
) -> None:
    logged_by_another_program(server, run, 100, 200, 300)

    first = open_run(server, run, memory)
    deliver(first, rows(1, 4))
    until(lambda: first.durable() == 4)
    first.close()
    again = open_run(server, run, memory)
    write(again, 1, 6, held=again.durable() or 0)

    assert "with 3 history lines" in first.found
    assert (losses(server, run), server.lines(run.id)) == ([1, 2, 3, 4, 5, 6], 9)


def test_lines_are_counted_behind_those_that_a_program_added_between_two_bridges(
    server: WandbServer, run: RunInfo, memory: MemoryTable
) -> None:
    write(open_run(server, run, memory), 1, 2)
    logged_by_another_program(server, run, 1_000)

    again = open_run(server, run, memory)
    write(again, 1, 4, held=again.durable() or 0)

    assert (losses(server, run), again.durable()) == ([1, 2, 3, 4], 4)


@pytest.mark.parametrize("fault", ["403", "503", "silence"])
def test_a_start_that_fails_does_not_keep_the_next_one_from_succeeding(
    server: WandbServer, run: RunInfo, memory: MemoryTable, fault: str
) -> None:
    if fault == "silence":
        server.hang(what="UpsertBucket", times=1)
    else:
        server.answer(
            int(fault), what="UpsertBucket", times=1 if fault == "403" else 100
        )
    with pytest.raises((BlockedError, RetryableError)):
        exporter.open(run, settings_at(server, run.folder, INIT_TIMEOUT_S="1"), memory)
    server.heal()

    write(open_run(server, run, memory), 1, 3)

    assert (losses(server, run), server.run(run.id).state) == ([1, 2, 3], "finished")


def test_a_failed_start_leaves_a_run_that_is_open_in_the_process_alone(
    server: WandbServer, run: RunInfo, memory: MemoryTable, tmp_path: Path
) -> None:
    first = open_run(server, run, memory)
    second = job(tmp_path, run, "allow")
    with pytest.raises((BlockedError, RetryableError)):
        exporter.open(second, settings_at(server, second.folder), MemoryTable())

    write(first, 1, 3)

    assert losses(server, run) == [1, 2, 3]


class ForgetfulTable(MemoryTable):
    """A memory whose process is killed between ``init()`` and the note that it succeeded."""

    killed = False

    def put(self, key: str, value: bytes) -> None:
        if key == "online/opened" and not self.killed:
            self.killed = True
            raise KeyboardInterrupt
        super().put(key, value)


@pytest.mark.parametrize("resume", ["never", "allow"])
def test_a_bridge_that_was_killed_while_it_created_the_run_goes_on_in_it(
    server: WandbServer, run: RunInfo, resume: str
) -> None:
    run, memory = (
        dataclasses.replace(run, identity={"rl.wandb.resume": resume}),
        ForgetfulTable(),
    )
    with pytest.raises(KeyboardInterrupt):
        exporter.open(run, settings_at(server, run.folder), memory)
    created = server.run(run.id).state

    writer = open_run(server, run, memory)
    write(writer, 1, 3)

    assert (created, losses(server, run)) == ("running", [1, 2, 3])


def test_a_run_of_a_killed_start_stays_the_job_s_own_when_the_server_refuses_the_next_start(
    memory: MemoryTable,
) -> None:
    RunOwnership(memory, None).opening()  # then killed, behind the creation of the run
    refused = RunOwnership(memory, ServerRun(0, "crashed"))
    refused.opening()
    refused.refused()

    RunOwnership(memory, ServerRun(0, "crashed")).require_allowed("r1", "never")

    with pytest.raises(BlockedError, match="this job did not create it"):
        RunOwnership(memory, ServerRun(3, "crashed")).require_allowed("r1", "never")


def test_a_run_that_somebody_created_while_this_start_failed_is_not_taken(
    server: WandbServer,
    run: RunInfo,
    opened: Callable[[], RunWriter],
    memory: MemoryTable,
) -> None:
    server.answer(503, what="UpsertBucket", times=100)
    with pytest.raises(RetryableError):
        exporter.open(run, settings_at(server, run.folder, INIT_TIMEOUT_S="1"), memory)
    server.heal()
    other = open_run(server, run, MemoryTable())
    deliver(other, rows(1, 2))
    until(lambda: other.durable() == 2)
    other.close()

    with pytest.raises(BlockedError, match="written by another process"):
        opened()


def test_a_generated_name_never_replaces_a_given_one_and_a_given_one_replaces_a_generated_one(
    server: WandbServer, run: RunInfo, tmp_path: Path
) -> None:
    shown: list[str] = []
    joined = dataclasses.replace(
        made(dataclasses.replace(run, folder=tmp_path / "joined")), name=run.id
    )
    named, generated = run, dataclasses.replace(joined, name_generated=True)
    for each, memory in (
        (generated, MemoryTable()),
        (named, MemoryTable()),
        (generated, MemoryTable()),
    ):
        open_run(server, each, memory).end(Status.FINISHED)
        shown.append(server.run(run.id).display_name)

    assert shown == [run.id, run.name, run.name]


@pytest.mark.parametrize("state", ["pending", "running"])
@pytest.mark.parametrize(
    ("sweep", "allowed"), [({"rl.wandb.sweep_id": "s"}, True), ({}, False)]
)
def test_a_trial_goes_on_in_the_empty_run_that_the_server_made_for_it(
    server: WandbServer,
    run: RunInfo,
    memory: MemoryTable,
    tmp_path: Path,
    state: str,
    sweep: dict[str, str],
    allowed: bool,
) -> None:
    second = job(tmp_path, run, "never")
    second = dataclasses.replace(second, identity={**second.identity, **sweep})
    server.store.runs["stand-in", run.project, run.id] = WandbRun(
        "stand-in",
        run.project,
        run.id,
        "made",
        state=state,
        raw_config={"lr": {"value": 0.5}},
    )

    if not allowed:
        with pytest.raises(BlockedError, match="WANDB_RESUME=never"):
            open_run(server, second, memory)
        return
    write(open_run(server, second, memory), 1, 2)

    held = server.run(run.id)
    assert (losses(server, run), held.state, held.sweep, held.config) == (
        [1, 2],
        "finished",
        "s",
        {"lr": 0.5},
    )
    assert [upsert.config["lr"] for upsert in held.upserts[:1]] == [{"value": 0.5}]


def test_a_trial_stays_out_of_a_run_that_another_process_writes(
    server: WandbServer, run: RunInfo, memory: MemoryTable, tmp_path: Path
) -> None:
    deliver(open_run(server, run, MemoryTable()), rows(1, 3))
    second = job(tmp_path, run, "allow")
    second = dataclasses.replace(
        second, identity={**second.identity, "rl.wandb.sweep_id": "s"}
    )

    until(lambda: server.lines(run.id) == 3)
    with pytest.raises(BlockedError, match="is being written by another process"):
        open_run(server, second, memory)
