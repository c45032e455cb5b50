"""``otel-bridge run``: exit codes, ends, signals, names, exporters."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import read_report
from support.bridge.gated_tracker import gated_lines, install
from support.otlp.journal_samples import lives_in
from support.trainers.command_runs import (
    BIN,
    LOSS,
    TRAIN,
    environment,
    only_folder,
    otel_bridge,
    program,
    report_of,
    rows_read,
    runs,
    started,
    statuses,
    until,
    values,
)

RUN = str(BIN / "otel-bridge")


def test_a_command_that_ends_well_leaves_a_finished_run(tmp_path: Path) -> None:
    train = program(tmp_path, "train.py", TRAIN)

    done = otel_bridge(
        "run",
        "--exporters",
        "file",
        "--",
        "python",
        train,
        "trainer",
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    folder = only_folder(runs(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (values(folder), statuses(folder)) == ({"trainer/loss": LOSS}, ["finished"])
    assert f"cat {folder.path}/file/*.jsonl" in done.stderr
    assert (folder.segments(), lives_in(folder), report_of(runs(tmp_path)).ended) == (
        [],
        [],
        True,
    )


def test_the_console_names_no_log_where_the_terminal_shows_it(tmp_path: Path) -> None:
    train = program(tmp_path, "train.py", TRAIN)
    command = ["run", "--exporters", "file,console", "--", "python", train, "trainer"]

    done = otel_bridge(*command, cwd=tmp_path, env=environment(tmp_path))
    shown = otel_bridge(
        "status", str(runs(tmp_path)), cwd=tmp_path, env=environment(tmp_path)
    )

    assert (done.returncode, only_folder(runs(tmp_path)).log_path.exists()) == (
        0,
        False,
    )
    assert "trainer/loss=" in done.stdout
    assert "file/*.jsonl" in done.stderr
    assert "bridge.log" not in done.stderr + shown.stdout


@pytest.mark.parametrize(
    ("last_line", "code", "status"),
    [
        ("sys.exit(3)", 3, "failed"),
        ("raise RuntimeError('no memory')", 1, "failed"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
            128 + signal.SIGTERM,
            "killed",
        ),
        ("import os; os._exit(0)", 0, "finished"),
    ],
)
def test_the_exit_code_is_the_commands_and_its_end_is_the_runs(
    tmp_path: Path, last_line: str, code: int, status: str
) -> None:
    train = program(tmp_path, "train.py", TRAIN + "    " + last_line)

    done = otel_bridge(
        "run",
        "--exporters",
        "file",
        "--",
        "python",
        train,
        "trainer",
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    folder = only_folder(runs(tmp_path))
    assert done.returncode == code, done.stderr
    assert (values(folder), statuses(folder)) == ({"trainer/loss": LOSS}, [status])


def test_an_unknown_command_is_said_in_one_line_and_leaves_no_run(
    tmp_path: Path,
) -> None:
    done = otel_bridge(
        "run",
        "--exporters",
        "file",
        "--",
        "no-such-program",
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    assert (done.returncode, done.stdout) == (127, "")
    assert (
        done.stderr
        == "Error: no-such-program: No such file or directory; expected a program that can be run\n"
    )
    assert run_folders(runs(tmp_path)) == []


def test_an_unknown_exporter_is_an_error_before_the_command_begins(
    tmp_path: Path,
) -> None:
    done = otel_bridge(
        "run",
        "--exporters",
        "trakio",
        "--",
        "touch",
        "begun",
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    assert done.returncode == 1
    known = "console, file, mlflow, otlp, trackio, wandb, webhook, none"
    assert f"exporter 'trakio' is not known; choose from {known}" in done.stderr
    assert not (tmp_path / "begun").exists()


@pytest.mark.parametrize(
    ("capture", "line"),
    [
        (
            "wandb",
            "otel-bridge: captured calls do not reach W&B; add --tee to send them there as well",
        ),
        (
            "wandb,trackio",
            "otel-bridge: captured calls do not reach W&B and Trackio; add --tee to send them there as well",
        ),
    ],
)
def test_a_capture_says_which_trackers_it_replaces_and_how_to_keep_them(
    tmp_path: Path, capture: str, line: str
) -> None:
    env = environment(tmp_path)

    replaced = otel_bridge(
        "run",
        "--exporters",
        "file",
        "--capture",
        capture,
        "--",
        "true",
        cwd=tmp_path,
        env=env,
    )
    kept = otel_bridge(
        "run",
        "--exporters",
        "file",
        "--capture",
        capture,
        "--tee",
        "--",
        "true",
        cwd=tmp_path,
        env=env,
    )

    assert line in replaced.stderr.splitlines(), replaced.stderr
    assert "do not reach" not in kept.stderr


def test_tensorboard_is_not_said_to_be_replaced_since_its_files_are_written(
    tmp_path: Path,
) -> None:
    command = ("run", "--exporters", "file", "--capture", "tensorboard", "--", "true")

    done = otel_bridge(*command, cwd=tmp_path, env=environment(tmp_path))

    assert "do not reach" not in done.stderr


def test_tee_without_a_capture_is_an_error_before_the_command_begins(
    tmp_path: Path,
) -> None:
    command = ("run", "--exporters", "file", "--tee", "--", "touch", "begun")

    done = otel_bridge(*command, cwd=tmp_path, env=environment(tmp_path))

    assert (done.returncode, done.stderr) == (
        1,
        "Error: --tee: nothing is captured; add --capture, e.g. --capture wandb\n",
    )
    assert not (tmp_path / "begun").exists()


def test_a_misspelt_command_is_named_with_the_one_that_is_like_it(
    tmp_path: Path,
) -> None:
    misspelt = otel_bridge("stauts", cwd=tmp_path, env=environment(tmp_path))
    unlike = otel_bridge("xyzzy", cwd=tmp_path, env=environment(tmp_path))

    assert (misspelt.returncode, unlike.returncode) == (2, 2)
    assert "'stauts' is not a command; did you mean status?" in misspelt.stderr
    assert "did you mean" not in unlike.stderr


def test_what_the_command_reads_and_prints_passes_through(tmp_path: Path) -> None:
    command = [
        RUN,
        "run",
        "--exporters",
        "file",
        "--",
        "sh",
        "-c",
        "read line; echo got $line; echo bad >&2",
    ]

    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(tmp_path),
        input="hello\n",
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "got hello\n")
    assert "bad\n" in done.stderr


def test_children_that_name_nothing_share_one_run(tmp_path: Path) -> None:
    train = program(tmp_path, "train.py", TRAIN)
    both = f"python {train} trainer & python {train} explorer & wait"

    done = otel_bridge(
        "run",
        "--exporters",
        "file",
        "--",
        "sh",
        "-c",
        both,
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    folder = only_folder(runs(tmp_path))
    assert done.returncode == 0, done.stderr
    assert values(folder) == {"trainer/loss": LOSS, "explorer/loss": LOSS}
    assert statuses(folder) == ["finished"]


@pytest.mark.parametrize(("starter", "name"), [("python", "train"), ("sh", "sh")])
def test_a_run_that_nothing_names_is_named_after_the_script_of_the_command(
    tmp_path: Path, starter: str, name: str
) -> None:
    train = program(tmp_path, "train.py", TRAIN)
    arguments = {"python": [train, "trainer"], "sh": ["-c", f"python {train} trainer"]}
    command = ["run", "--exporters", "file", "--", starter, *arguments[starter]]

    done = otel_bridge(*command, cwd=tmp_path, env=environment(tmp_path))

    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        name + r"-\d{8}-\d{6}-[0-9a-f]{4}", report_of(runs(tmp_path)).name
    )


def test_a_child_that_names_another_run_is_served_too(tmp_path: Path) -> None:
    program(tmp_path, "train.py", TRAIN)
    code = "import sys, otel_bridge; run = otel_bridge.init(name=sys.argv[1]); run.log({'loss': 1.0}, step=1)"
    both = f'python -c "{code}" one; python -c "{code}" two'

    done = otel_bridge(
        "run",
        "--exporters",
        "file",
        "--",
        "sh",
        "-c",
        both,
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    folders = run_folders(runs(tmp_path))
    assert done.returncode == 0, done.stderr
    assert sorted(read_report(folder).name for folder in folders) == ["one", "two"]
    assert [(values(folder), statuses(folder)) for folder in folders] == [
        ({"loss": [(1, 1.0)]}, ["finished"])
    ] * 2


def test_the_same_name_is_the_same_run_and_new_starts_another(tmp_path: Path) -> None:
    env = environment(tmp_path, OTEL_BRIDGE_RUN_NAME="ppo")
    train = program(tmp_path, "train.py", TRAIN)
    command = ["run", "--exporters", "file", "--", "python", train, "trainer"]
    first = otel_bridge(*command, cwd=tmp_path, env=env)
    again = otel_bridge(*command, cwd=tmp_path, env=env)

    new = otel_bridge("run", "--new", *command[1:], cwd=tmp_path, env=env)

    assert [first.returncode, again.returncode, new.returncode] == [0, 0, 0]
    assert "resuming, last trainer step 3" in again.stderr
    assert "resuming" not in first.stderr + new.stderr
    names = sorted(read_report(folder).name for folder in run_folders(runs(tmp_path)))
    assert (names[0], len(names), names[1].startswith("ppo-")) == ("ppo", 2, True)


def test_a_child_s_own_exporters_count_where_the_launcher_chose_none(
    tmp_path: Path,
) -> None:
    code = "import otel_bridge; otel_bridge.init(role='trainer', exporters='file').log({'loss': 0.5}, step=1)"

    done = otel_bridge(
        "run", "--", "python", "-c", code, cwd=tmp_path, env=environment(tmp_path)
    )

    folder = only_folder(runs(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (values(folder), statuses(folder)) == (
        {"trainer/loss": [(1, 0.5)]},
        ["finished"],
    )
    assert report_of(runs(tmp_path)).launcher


def test_the_launchers_exporters_go_before_those_of_a_child(tmp_path: Path) -> None:
    code = "import otel_bridge; otel_bridge.init(role='trainer', exporters='mlflow').log({'loss': 0.5}, step=1)"

    done = otel_bridge(
        "run",
        "--exporters",
        "file",
        "--",
        "python",
        "-c",
        code,
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    assert done.returncode == 0, done.stderr
    assert set(report_of(runs(tmp_path)).exporters) == {"file"}


@pytest.mark.parametrize("options", [(), ("--exporters", "trackio")])
def test_a_program_that_names_another_destination_is_shown_the_launchers(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    code = (
        "import os; os.environ['TRACKIO_DIR'] = '/tmp/of-the-program'; import otel_bridge;"
        " otel_bridge.init(exporters='trackio').log({'loss': 0.5}, step=1)"
    )
    env = {**environment(tmp_path), "TRACKIO_DIR": str(tmp_path / "of-the-launcher")}

    done = otel_bridge(
        "run", *options, "--", "python", "-c", code, cwd=tmp_path, env=env
    )

    assert done.returncode == 0, done.stderr
    assert f"trackio: TRACKIO_DIR={tmp_path}/of-the-launcher" in done.stderr
    assert "of-the-program" not in done.stderr


def test_none_for_the_launcher_is_none_for_its_children(tmp_path: Path) -> None:
    code = "import otel_bridge; otel_bridge.init(role='trainer', exporters='file').log({'loss': 0.5}, step=1)"

    done = otel_bridge(
        "run",
        "--exporters",
        "none",
        "--",
        "python",
        "-c",
        code,
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    assert (done.returncode, run_folders(runs(tmp_path))) == (0, [])
    assert "nothing is recorded" in done.stderr


def test_where_nobody_chose_an_exporter_all_is_kept_and_said(tmp_path: Path) -> None:
    train = program(tmp_path, "train.py", TRAIN)

    done = otel_bridge(
        "run", "--", "python", train, "trainer", cwd=tmp_path, env=environment(tmp_path)
    )
    folder = only_folder(runs(tmp_path))
    drained = otel_bridge(
        "drain", "--exporters", "file", cwd=tmp_path, env=environment(tmp_path)
    )

    assert done.returncode == 0, done.stderr
    assert (
        f"no exporter is chosen; pass --exporters: otel-bridge drain --exporters trackio {folder.path}"
        in done.stderr
    )
    assert drained.returncode == 0, drained.stdout
    assert (values(folder), statuses(folder)) == ({"trainer/loss": LOSS}, ["finished"])


KILLED_WORKER = """
    import os, signal
    if os.fork() == 0:
        import otel_bridge
        otel_bridge.init(role="trainer").log({"loss": 0.5}, step=1)
        os.kill(os.getpid(), signal.SIGKILL)
    os.wait()
"""


def test_a_trainer_killed_below_a_command_that_ends_well_was_killed(
    tmp_path: Path,
) -> None:
    train = program(tmp_path, "train.py", KILLED_WORKER)

    done = otel_bridge(
        "run",
        "--exporters",
        "file",
        "--",
        "python",
        train,
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    folder = only_folder(runs(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (values(folder), statuses(folder)) == (
        {"trainer/loss": [(1, 0.5)]},
        ["killed"],
    )


def test_a_process_that_outlives_the_command_ends_with_it(tmp_path: Path) -> None:
    waiting = """
    import os, time
    print("logged", flush=True)
    while not os.path.exists("over"):
        time.sleep(0.05)
    """
    train = program(tmp_path, "train.py", TRAIN + waiting)
    command = f"python {train} trainer > logged 2>&1 & while ! grep -q ^logged logged; do sleep 0.05; done"

    try:
        done = otel_bridge(
            "run",
            "--exporters",
            "file",
            "--",
            "sh",
            "-c",
            command,
            cwd=tmp_path,
            env=environment(tmp_path),
        )
    finally:
        (tmp_path / "over").touch()

    folder = only_folder(runs(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (values(folder), statuses(folder)) == ({"trainer/loss": LOSS}, ["finished"])


def test_a_leftover_bridge_of_the_same_run_hands_over(tmp_path: Path) -> None:
    env = environment(
        tmp_path,
        OTEL_BRIDGE_RUN_NAME="ppo",
        OTEL_BRIDGE_EXPORTERS="gated",
        **install(tmp_path),
    )
    train = program(tmp_path, "train.py", TRAIN)
    plain = program(tmp_path, "plain.py", TRAIN + "    run.finish(timeout_s=0)")
    with started(["python", plain, "trainer"], cwd=tmp_path, env=env) as process:
        process.wait(60)
        leftover = until(lambda: _bridge_of(tmp_path), "the plain bridge")
        (tmp_path / "gate").touch()

        done = otel_bridge(
            "run",
            "--exporters",
            "gated",
            "--",
            "python",
            train,
            "explorer",
            cwd=tmp_path,
            env=env,
        )

    assert done.returncode == 0, done.stderr
    until(lambda: not psutil.pid_exists(leftover), "the leftover's end")
    assert gated_lines(tmp_path)[:3] == [f"trainer/loss {step}" for step in (1, 2, 3)]
    assert set(gated_lines(tmp_path)) == {
        f"{role}/loss {step}" for role in ("trainer", "explorer") for step in (1, 2, 3)
    } | {"end finished"}
    assert report_of(runs(tmp_path)).launcher


OTHER = """
    import pathlib, time
    import otel_bridge
    with otel_bridge.init(name="other", role="trainer", exporters="file") as run:
        run.log({"loss": 1.0}, step=1)
        run.flush()
        pathlib.Path("flushed").touch()
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
        run.log({"loss": 2.0}, step=2)
"""


@pytest.mark.parametrize("first", ["the other job", "the launcher"])
def test_another_jobs_plain_run_in_the_same_folder_is_left_alone(
    tmp_path: Path, first: str
) -> None:
    env, other, train = (
        environment(tmp_path),
        program(tmp_path, "other.py", OTHER),
        program(tmp_path, "train.py", TRAIN),
    )
    command = f"while [ ! -e flushed ]; do sleep 0.05; done; sleep 0.5; python {train} trainer"
    ours = [RUN, "run", "--exporters", "file", "--", "sh", "-c", command]
    commands = (
        [["python", other], ours]
        if first == "the other job"
        else [ours, ["python", other]]
    )
    with started(commands[0], cwd=tmp_path, env=env) as one:
        until((tmp_path / ".otel-bridge").exists, "the first one's folder")
        with started(commands[1], cwd=tmp_path, env=env) as two:
            launcher, plain = (two, one) if first == "the other job" else (one, two)

            code = launcher.wait(60)

            (tmp_path / "go").touch()
            assert (code, plain.wait(60)) == (0, 0)
    by_name = {
        read_report(folder).name: folder for folder in run_folders(runs(tmp_path))
    }
    others = by_name.pop("other")
    (mine,) = by_name.values()
    assert (values(others), statuses(others)) == (
        {"trainer/loss": [(1, 1.0), (2, 2.0)]},
        ["finished"],
    )
    assert (values(mine), statuses(mine)) == ({"trainer/loss": LOSS}, ["finished"])
    assert [read_report(folder).launcher for folder in (others, mine)] == [False, True]


def _bridge_of(folder: Path) -> int | None:
    """The process that holds the lock of the one run folder, once it has read something."""
    found = run_folders(runs(folder))
    if len(found) != 1 or rows_read(folder) == 0:
        return None
    holder = found[0].holder()
    return holder.pid if holder is not None and psutil.pid_exists(holder.pid) else None


@pytest.mark.long
def test_what_waits_for_a_tracker_that_hangs_is_said_and_does_not_keep_the_command(
    tmp_path: Path,
) -> None:
    extra = install(tmp_path)
    (tmp_path / "gate").touch()
    train = program(tmp_path, "train.py", TRAIN)
    env = environment(
        tmp_path, GATED_HANGS="1", OTEL_BRIDGE_DRAIN_TIMEOUT_S="1", **extra
    )

    done = otel_bridge(
        "run",
        "--exporters",
        "gated",
        "--",
        "python",
        train,
        "trainer",
        cwd=tmp_path,
        env=env,
    )

    folder = only_folder(runs(tmp_path))
    go_on = f"not everything is delivered; to continue: otel-bridge drain {folder.path}"
    assert (done.returncode, done.stderr.splitlines()[-2:]) == (
        0,
        ["1 record waits for gated, which hangs", go_on],
    )


NAMED = """
    import otel_bridge
    with otel_bridge.init("maths", "ppo", role="trainer") as run:
        run.log({"loss": 0.5}, step=1)
"""


def test_new_holds_for_a_name_that_the_programs_give_themselves(tmp_path: Path) -> None:
    train = program(tmp_path, "train.py", NAMED)
    twice = f"python {train} && python {train}"
    run = ["run", "--exporters", "file", "--new", "--", "sh", "-c", twice]

    first = otel_bridge(*run, cwd=tmp_path, env=environment(tmp_path))
    second = otel_bridge(*run, cwd=tmp_path, env=environment(tmp_path))

    found = [read_report(folder) for folder in run_folders(runs(tmp_path))]
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert [
        (report.project, report.name[:4], report.rows) for report in found if report
    ] == [("maths", "ppo-", 2)] * 2


def test_a_program_under_a_launcher_without_exporters_is_reported_that_all_is_kept(
    tmp_path: Path,
) -> None:
    train = program(tmp_path, "train.py", NAMED)

    done = otel_bridge(
        "run", "--", "python", train, cwd=tmp_path, env=environment(tmp_path)
    )

    assert done.returncode == 0
    assert "as trainer → no exporter yet\n" in done.stderr
    assert (
        "`otel-bridge run` has no --exporters, so all records are kept" in done.stderr
    )
    folder = only_folder(runs(tmp_path)).path
    assert (
        f"no exporter is chosen; pass --exporters: otel-bridge drain --exporters trackio {folder}"
        in done.stderr
    )
