"""``otel-bridge drain``: what held, blocked and left folders hold is delivered, or it says why not."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from otel_bridge.cli.drain import Drains
from otel_bridge.cli.terminal import Terminal
from otel_bridge.journal.folder import RunFolder, run_folders
from otel_bridge.journal.locks import probe
from otel_bridge.journal.report import read_report
from support.bridge.gated_tracker import gated_lines, install
from support.trackers import shown_runs
from support.trainers.command_runs import (
    BIN,
    call,
    environment,
    only_folder,
    otel_bridge,
    program,
    report_of,
    run_info,
    started,
    statuses,
    until,
    values,
)
from support.waiting import HANG_S

TRAIN = """
    import sys, time
    import otel_bridge
    with otel_bridge.init("maths", sys.argv[1], role="trainer", exporters=sys.argv[2]) as run:
        for step in (1, 2, 3):
            run.log({"loss": step / 2, "bad": float("inf")}, step=step)
            messages = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
            run.log_rollouts([{"messages": messages, "reward": step}], step=step)
            time.sleep(0.02)
"""
LIVING = """
    import pathlib, time
    import otel_bridge
    otel_bridge.init("maths", "ppo", role="trainer", exporters="gated").log({"loss": 0.5}, step=1)
    pathlib.Path("logged").touch()
    time.sleep(600)
"""
LOSS = [(1, 0.5), (2, 1.0), (3, 1.5)]


def held(tmp_path: Path, name: str, exporters: str, **variables: str) -> Path:
    """Run the program where only segments are kept; returns the directory of run folders."""
    train = program(tmp_path, "train.py", TRAIN)
    done = call(
        ["python", train, name, exporters],
        cwd=tmp_path,
        env=environment(tmp_path, OTEL_BRIDGE_OFFLINE="1", **variables),
    )
    assert done.returncode == 0, done.stderr
    return tmp_path / ".otel-bridge"


def test_a_held_folder_is_delivered_to_where_its_program_wanted_it(
    tmp_path: Path,
) -> None:
    base = held(tmp_path, "ppo", "file")
    before = only_folder(base).segments()

    done = otel_bridge("drain", cwd=tmp_path, env=environment(tmp_path))

    folder = only_folder(base)
    assert (done.returncode, len(before)) == (0, 1), done.stdout
    assert (values(folder)["trainer/loss"], statuses(folder)) == (LOSS, ["finished"])
    assert (folder.segments(), report_of(base).ended) == ([], True)


def test_modules_of_the_user_in_the_working_folder_are_not_those_of_the_bridge(
    tmp_path: Path,
) -> None:
    held(tmp_path, "ppo", "file")
    (tmp_path / "orjson.py").write_text("raise SystemExit('of the user')")

    done = otel_bridge("drain", cwd=tmp_path, env=environment(tmp_path))

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_a_held_run_stands_in_every_tracker_with_the_time_it_happened(
    tmp_path: Path,
) -> None:
    places = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
    }
    base = held(tmp_path, "ppo", "wandb,mlflow,trackio", **places)
    over_ms = time.time() * 1000

    env = environment(
        tmp_path, OTEL_BRIDGE_TRACKIO_ALL_SERIES="1", OTEL_BRIDGE_MLFLOW_ALL_SERIES="1"
    )
    done = otel_bridge("drain", str(base), cwd=tmp_path / "home", env=env)

    run = run_info(base)
    assert done.returncode == 0, done.stdout + done.stderr
    wandb = shown_runs.wandb_offline(tmp_path, run.id)
    mlflow = shown_runs.mlflow(places["MLFLOW_TRACKING_URI"], run)
    trackio = shown_runs.trackio(tmp_path / "trackio", run)
    assert wandb.scalars == mlflow.scalars == trackio.scalars
    assert ("trainer/bad", 2, "inf") in trackio.scalars
    assert wandb.rollouts == mlflow.rollouts == trackio.rollouts
    assert [len(wandb.rollouts), wandb.steps("trainer")] == [3, [1, 2, 3]]
    for shown in (wandb, mlflow, trackio):
        times = [shown.times_ms["trainer/loss", step] or 0 for step in (1, 2, 3)]
        assert times[0] + 20 <= times[1] <= times[2] - 20 < over_ms
        assert max(when or 0 for when in shown.times_ms.values()) < over_ms


def test_several_folders_are_delivered_and_named_exporters_go_before_those_of_the_programs(
    tmp_path: Path,
) -> None:
    held(tmp_path, "one", "trackio")
    base = held(tmp_path, "two", "mlflow")

    done = otel_bridge(
        "drain", "--exporters", "file", cwd=tmp_path, env=environment(tmp_path)
    )

    assert done.returncode == 1, done.stdout  # what the programs asked for is behind
    assert [values(folder)["trainer/loss"] for folder in run_folders(base)] == [
        LOSS,
        LOSS,
    ]
    assert [set(read_report(folder).exporters) for folder in run_folders(base)] == [
        {"file"}
    ] * 2
    assert "maths/one" in done.stdout
    assert "maths/two" in done.stdout


def test_the_folders_named_are_drained_and_no_others(tmp_path: Path) -> None:
    held(tmp_path, "one", "file")
    base = held(tmp_path, "two", "file")
    one, two = run_folders(base)

    done = otel_bridge("drain", str(two.path), cwd=tmp_path, env=environment(tmp_path))

    assert done.returncode == 0, done.stdout
    assert (len(one.segments()), two.segments()) == (1, [])
    assert values(two)["trainer/loss"] == LOSS


def test_drained_again_nothing_comes_twice(tmp_path: Path) -> None:
    base = held(tmp_path, "ppo", "file")
    first = otel_bridge("drain", cwd=tmp_path, env=environment(tmp_path))

    again = otel_bridge("drain", cwd=tmp_path, env=environment(tmp_path))

    assert (first.returncode, again.returncode) == (0, 0)
    assert values(only_folder(base))["trainer/loss"] == LOSS


@pytest.mark.long
def test_trackers_that_a_run_had_before_are_still_shown_with_what_they_hold(
    tmp_path: Path,
) -> None:
    base = held(tmp_path, "ppo", "file")
    env = environment(tmp_path)
    otel_bridge("drain", cwd=tmp_path, env=env)
    before = report_of(base).exporters["file"]

    done = otel_bridge("drain", "--exporters", "console", cwd=tmp_path, env=env)
    shown = otel_bridge("status", cwd=tmp_path, env=env).stdout

    report = report_of(base)
    assert (done.returncode, list(report.exporters), report.former) == (
        1,
        ["console"],
        {"file": before},
    )
    assert (
        "not everything is delivered: console was named later: it lacks 10 records that had been deleted by then"
        in done.stdout
    )
    for said in (done.stdout, shown):
        assert (
            "file, no longer named, has 6 rows and 3 rollouts\n" in said
        )  # the rollouts' statistics are rows too
        assert re.search(rf"^  file +{re.escape(before.view)}$", said, re.MULTILINE)
    again = otel_bridge("drain", "--exporters", "file", cwd=tmp_path, env=env)
    assert (again.returncode, list(report_of(base).former)) == (0, ["console"])


def test_a_blocked_exporter_is_said_with_what_helps_and_the_others_get_all(
    tmp_path: Path,
) -> None:
    extra = {"GATED_BLOCKED": "1", **install(tmp_path)}
    base = held(tmp_path, "ppo", "gated,file", **extra)

    blocked = otel_bridge("drain", cwd=tmp_path, env=environment(tmp_path, **extra))
    (tmp_path / "gate").touch()
    free = otel_bridge("drain", cwd=tmp_path, env=environment(tmp_path, **extra))

    folder = only_folder(base)
    assert blocked.returncode == 1
    assert (
        f"{folder.path}: not everything is delivered: gated is blocked: the gate is shut"
        in blocked.stdout
    )
    assert f"touch {tmp_path}/gate" in blocked.stdout
    assert values(folder)["trainer/loss"] == LOSS
    assert free.returncode == 0, free.stdout
    assert [line for line in gated_lines(tmp_path) if "loss" in line] == [
        f"trainer/loss {step}" for step in (1, 2, 3)
    ]
    assert gated_lines(tmp_path)[-1] == "end finished"


def test_a_tracker_that_is_down_is_named_at_once_and_given_up_when_its_time_is_over(
    tmp_path: Path,
) -> None:
    extra = install(tmp_path)
    base = held(tmp_path, "ppo", "gated", **extra)
    env = environment(tmp_path, OTEL_BRIDGE_RETRY_AFTER_EXIT_S="1", **extra)

    done = otel_bridge("drain", cwd=tmp_path, env=env)

    folder = only_folder(base)
    first, *_, last = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (1, "")
    assert (
        first == f"{folder.run_id}: gated: not written, tried again: the gate is shut"
    )
    assert last == (
        f"{folder.path}: not everything is delivered: gated is retrying: the gate is shut"
    )
    assert done.stdout.count("tried again") == 1


def test_on_a_terminal_a_long_delivery_shows_how_much_is_left(tmp_path: Path) -> None:
    extra = install(tmp_path)
    base = held(tmp_path, "ppo", "gated", **extra)
    env = environment(
        tmp_path, OTEL_BRIDGE_RETRY_AFTER_EXIT_S="600", TERM="xterm", **extra
    )
    screen, terminal = pty.openpty()
    output: list[str] = []

    def bar() -> bool:
        output.append(os.read(screen, 65536).decode())
        return "records in gated (retrying)" in "".join(output)

    with subprocess.Popen(
        [str(BIN / "otel-bridge"), "drain"], cwd=tmp_path, env=env, stdout=terminal
    ) as drain:
        os.close(terminal)
        until(bar, "a bar")
        (tmp_path / "gate").touch()
        with suppress(OSError):  # the terminal has no other end any more
            while True:
                bar()
    os.close(screen)

    assert drain.returncode == 0
    assert "runs" in "".join(output)
    assert values(only_folder(base)) == {}, "everything is delivered, and deleted"


def test_a_signal_in_the_middle_ends_it_whole_and_the_next_one_goes_on(
    tmp_path: Path,
) -> None:
    extra = install(tmp_path)
    base = held(tmp_path, "ppo", "gated,file", **extra)
    env = environment(tmp_path, OTEL_BRIDGE_RETRY_AFTER_EXIT_S="600", **extra)
    with started([str(BIN / "otel-bridge"), "drain"], cwd=tmp_path, env=env) as first:
        until(lambda: (found := read_report(only_folder(base))) is not None and "gated" in found.exporters
              and found.exporters["gated"].state == "retrying", "a try of the tracker")  # fmt: skip
        first.terminate()
        said, _ = first.communicate(timeout=HANG_S)
    free = not probe(only_folder(base).lock_path)
    (tmp_path / "gate").touch()

    again = otel_bridge("drain", cwd=tmp_path, env=env)

    assert (first.returncode, free, again.returncode) == (1, True, 0)
    assert "gated is retrying: the gate is shut" in said
    assert [line for line in gated_lines(tmp_path) if "loss" in line] == [
        f"trainer/loss {step}" for step in (1, 2, 3)
    ]
    assert values(only_folder(base))["trainer/loss"] == LOSS


def test_without_any_exporter_it_says_what_to_pass(tmp_path: Path) -> None:
    train = program(
        tmp_path,
        "train.py",
        "import otel_bridge; otel_bridge.init('maths', 'ppo').log({'loss': 1.0})",
    )
    call(
        ["python", train],
        cwd=tmp_path,
        env=environment(tmp_path, OTEL_BRIDGE_OFFLINE="1"),
    )

    done = otel_bridge("drain", cwd=tmp_path, env=environment(tmp_path))
    named = otel_bridge(
        "drain", "--exporters", "file", cwd=tmp_path, env=environment(tmp_path)
    )

    assert done.returncode == 1
    assert (
        "not everything is delivered: no exporter is chosen; pass --exporters"
        in done.stdout
    )
    assert named.returncode == 0, named.stdout
    assert values(only_folder(tmp_path / ".otel-bridge")) == {"loss": [(0, 1.0)]}


def test_a_killed_trainers_folder_is_delivered_and_its_run_was_killed(
    tmp_path: Path,
) -> None:
    code = """
        import os, signal
        import otel_bridge
        run = otel_bridge.init("maths", "ppo", role="trainer", exporters="file")
        run.log({"loss": 0.5}, step=1)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    train = program(tmp_path, "train.py", code)
    call(
        ["python", train],
        cwd=tmp_path,
        env=environment(tmp_path, OTEL_BRIDGE_OFFLINE="1"),
    )

    done = otel_bridge("drain", cwd=tmp_path, env=environment(tmp_path))

    folder = only_folder(tmp_path / ".otel-bridge")
    assert done.returncode == 0, done.stdout
    assert (values(folder), statuses(folder)) == (
        {"trainer/loss": [(1, 0.5)]},
        ["killed"],
    )


def test_a_run_that_still_goes_on_is_delivered_so_far_and_said_to_go_on(
    tmp_path: Path,
) -> None:
    code = """
        import pathlib, time
        import otel_bridge
        with otel_bridge.init("maths", "ppo", role="trainer", exporters="file") as run:
            run.log({"loss": 0.5}, step=1)
            pathlib.Path("ready").touch()
            while not pathlib.Path("go").exists():
                time.sleep(0.01)
            run.log({"loss": 1.0}, step=2)
    """
    train, env = (
        program(tmp_path, "train.py", code),
        environment(tmp_path, OTEL_BRIDGE_OFFLINE="1"),
    )
    with started(["python", train], cwd=tmp_path, env=env) as process:
        until((tmp_path / "ready").exists, "the program's beginning")

        so_far = otel_bridge("drain", cwd=tmp_path, env=environment(tmp_path))

        folder = only_folder(tmp_path / ".otel-bridge")
        assert (so_far.returncode, values(folder)) == (1, {"trainer/loss": [(1, 0.5)]})
        assert (
            "not everything is delivered: its processes have not ended: 1"
            in so_far.stdout
        )
        (tmp_path / "go").touch()
        process.wait(60)
    done = otel_bridge("drain", cwd=tmp_path, env=environment(tmp_path))
    assert (done.returncode, values(folder), statuses(folder)) == (
        0,
        {"trainer/loss": [(1, 0.5), (2, 1.0)]},
        ["finished"],
    )


def test_a_tracker_that_is_down_is_given_up_although_the_run_still_goes_on(
    tmp_path: Path,
) -> None:
    extra = install(tmp_path)
    train = program(tmp_path, "train.py", LIVING)
    offline = environment(tmp_path, OTEL_BRIDGE_OFFLINE="1", **extra)
    env = environment(tmp_path, OTEL_BRIDGE_RETRY_AFTER_EXIT_S="1", **extra)
    with started(["python", train], cwd=tmp_path, env=offline):
        until((tmp_path / "logged").exists, "the row")

        done = otel_bridge("drain", cwd=tmp_path, env=env)

    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].endswith(
        "gated is retrying: the gate is shut; its processes have not ended: 1"
    )


def test_a_folder_that_another_machine_serves_is_refused_until_its_heart_stops(
    tmp_path: Path,
) -> None:
    base = held(tmp_path, "ppo", "file")
    folder = only_folder(base)
    _hold_elsewhere(folder, time.time_ns())
    refused = otel_bridge("drain", cwd=tmp_path, env=environment(tmp_path))
    _hold_elsewhere(folder, time.time_ns() - 90 * 10**9)

    done = otel_bridge("drain", cwd=tmp_path, env=environment(tmp_path))

    assert refused.returncode == 1
    assert (
        "a bridge on elsewhere serves this folder; run drain there, or wait until that bridge has exited"
        in refused.stdout
    )
    assert done.returncode == 0, done.stdout
    assert values(folder)["trainer/loss"] == LOSS


def _hold_elsewhere(folder: RunFolder, heartbeat_unix_ns: int) -> None:
    content = {
        "pid": 1,
        "host": "elsewhere",
        "boot_id": "another",
        "heartbeat_unix_ns": heartbeat_unix_ns,
    }
    folder.lock_path.write_text(json.dumps(content))
    os.chmod(folder.lock_path, 0o600)


def test_a_plain_bridge_of_the_folder_hands_over(tmp_path: Path) -> None:
    extra = install(tmp_path)
    env = environment(tmp_path, **extra)
    train = program(tmp_path, "train.py", TRAIN)
    left = call(
        ["python", train, "ppo", "gated"],
        cwd=tmp_path,
        env={**env, "OTEL_BRIDGE_DRAIN_TIMEOUT_S": "1"},
    )
    (tmp_path / "gate").touch()

    done = otel_bridge("drain", cwd=tmp_path, env=env)

    assert (left.returncode, done.returncode) == (0, 0), done.stdout
    assert [line for line in gated_lines(tmp_path) if "loss" in line] == [
        f"trainer/loss {step}" for step in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--exporters", "trakio"], 1, "exporter 'trakio' is not known"),
        (["nowhere"], 2, "nowhere: no such folder"),
    ],
)
def test_what_cannot_be_drained_is_said(
    tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    done = otel_bridge("drain", *arguments, cwd=tmp_path, env=environment(tmp_path))

    assert done.returncode == code
    assert said in done.stdout + done.stderr


@pytest.mark.parametrize(
    "command", ["drain", "status", "rollouts", "dead-letters list"]
)
def test_without_a_run_folder_all_commands_print_the_same_and_exit_alike(
    tmp_path: Path, command: str
) -> None:
    (tmp_path / "empty").mkdir()
    env = environment(tmp_path)

    def ending(*arguments: str, **variables: str) -> tuple[int, str, str]:
        done = otel_bridge(
            *command.split(), *arguments, cwd=tmp_path, env={**env, **variables}
        )
        return done.returncode, done.stdout, done.stderr

    advice = "pass the folder that holds run folders, or set OTEL_BRIDGE_DIR\n"
    assert ending() == (0, "", f"{tmp_path}/.otel-bridge: no such folder; {advice}")
    assert ending(OTEL_BRIDGE_DIR="empty") == (
        0,
        "",
        f"{tmp_path}/empty: no run folder here; {advice}",
    )
    assert ending("nowhere") == (2, "", f"Error: nowhere: no such folder; {advice}")
    assert ending("empty") == (2, "", f"Error: empty: no run folder here; {advice}")


def test_the_folder_above_the_run_folders_stands_for_them_unless_it_has_several(
    tmp_path: Path,
) -> None:
    held(tmp_path, "ppo", "file", OTEL_BRIDGE_DIR="job/runs")
    env = environment(tmp_path)

    drained = otel_bridge("drain", "job", cwd=tmp_path, env=env)
    shown = otel_bridge("status", "job", cwd=tmp_path, env=env)
    default = otel_bridge("status", cwd=tmp_path, env={**env, "OTEL_BRIDGE_DIR": "job"})
    held(tmp_path, "ppo", "file", OTEL_BRIDGE_DIR="job/other")
    several = [
        otel_bridge(name, "job", cwd=tmp_path, env=env)
        for name in ("drain", "status", "rollouts")
    ]

    assert (drained.returncode, shown.returncode) == (0, 0), (
        drained.stderr + shown.stderr
    )
    assert "maths/ppo" in shown.stdout
    assert default.stdout.splitlines()[0] == shown.stdout.splitlines()[0]
    line = "Error: job: no run folder here; they are in several folders below: other, runs; pass one of them\n"
    assert [(done.returncode, done.stderr) for done in several] == [(2, line)] * 3


@pytest.mark.long
def test_records_that_a_hanging_tracker_took_and_did_not_say_that_it_holds_are_in_doubt(
    tmp_path: Path,
) -> None:
    extra = install(tmp_path)
    (tmp_path / "gate").touch()
    train = program(tmp_path, "train.py", LIVING)
    env = environment(tmp_path, OTEL_BRIDGE_OFFLINE="1", GATED_HANGS="1", **extra)
    base = tmp_path / ".otel-bridge"
    with started(["python", train], cwd=tmp_path, env=env):
        until((tmp_path / "logged").exists, "a row")

        done = otel_bridge("drain", str(base), cwd=tmp_path, env=env)

    (said,) = re.findall(r": not everything is delivered: (.*)", done.stdout)
    doubt, living = said.split("; ")
    assert done.returncode == 1
    assert re.fullmatch(
        r"gated did not confirm in time that it holds the last \d+ records?", doubt
    )
    assert living == "its processes have not ended: 1"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_waits_for_a_tracker_that_hangs_is_said_when_a_signal_ends_the_drain(
    tmp_path: Path, number: signal.Signals
) -> None:
    extra = install(tmp_path)
    (tmp_path / "gate").touch()
    base = held(tmp_path, "ppo", "gated", **extra)
    env = environment(tmp_path, GATED_HANGS="1", **extra)
    with started(
        [str(BIN / "otel-bridge"), "drain", str(base)], cwd=tmp_path, env=env
    ) as drain:
        until(
            lambda: "end finished" in gated_lines(tmp_path),
            "the end, in which it hangs",
        )
        os.killpg(drain.pid, number)
        said, _ = drain.communicate(timeout=HANG_S)

    assert drain.returncode == 1
    assert (
        f"{only_folder(base).path}: not everything is delivered: 1 record waits for gated, which hangs\n"
        in said
    )


def test_a_renamed_folder_keeps_its_records_until_it_has_its_name_again(
    tmp_path: Path,
) -> None:
    env = environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file")
    source = """
    import otel_bridge
    with otel_bridge.init("maths", "ppo") as run:
        run.log({"loss": 1.0})
    """
    call(
        ["python", program(tmp_path, "train.py", source)],
        cwd=tmp_path,
        env={**env, "OTEL_BRIDGE_OFFLINE": "1"},
    )
    folder = only_folder(tmp_path / ".otel-bridge")
    renamed = folder.path.rename(folder.base / "backup")

    refused = otel_bridge("drain", cwd=tmp_path, env=env)
    kept = len(list(renamed.glob("segments/*.seg")))
    renamed.rename(folder.path)
    done = otel_bridge("drain", cwd=tmp_path, env=env)

    assert (refused.returncode, kept) == (1, 1)
    assert (
        f"holds the run {folder.run_id}; rename the folder to {folder.path.name}"
        in refused.stdout
    )
    assert (
        done.returncode,
        report_of(tmp_path / ".otel-bridge").exporters["file"].rows,
    ) == (
        0,
        1,
    ), done.stdout


def test_a_process_that_cannot_start_leaves_no_pipe_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    open_before = len(os.listdir("/proc/self/fd"))

    with pytest.raises(FileNotFoundError):
        Drains(Terminal()).drain([RunFolder.at(tmp_path)])

    assert len(os.listdir("/proc/self/fd")) == open_before
