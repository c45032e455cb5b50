"""Runs of a process beside its own: init(handle=True)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import otel_bridge
from otel_bridge.emit import process_runs
from otel_bridge.errors import ConfigError
from support.trainers.e2e_jobs import (
    bridges,
    ended,
    environment,
    rows,
    run,
    script,
    status,
    until,
)
from support.trainers.emit_samples import (
    environment_of,
    held,
    run_in,
    run_script,
    seen_in,
)


def test_a_handle_and_the_processs_own_run_leave_each_other_alone(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path, role="trainer") as own:
        trial = otel_bridge.init("tune", "trial-1", config={"lr": 0.1}, handle=True)
        other = otel_bridge.init("tune", "trial-2", handle=True)
        assert otel_bridge.current_run() is own
        assert len({own.id, trial.id, other.id}) == 3

        trial.log({"loss": 1.0})
        other.log({"loss": 2.0})
        other.finish("failed")
        otel_bridge.log({"loss": 3.0})
        trial.log({"loss": 4.0})
        own.finish()
        trial.log({"loss": 5.0})
        assert (own.recording, other.recording, trial.recording) == (False, False, True)
        trial.finish()

        mine, first, second = seen_in(tmp_path)
        assert [[row.values for row in seen.rows] for seen in (mine, first, second)] == [
            [{"loss": 3.0}], [{"loss": 1.0}, {"loss": 4.0}, {"loss": 5.0}], [{"loss": 2.0}]
        ]  # fmt: skip
        ends = [
            seen.event("rl.run.end").attributes["rl.run.status"]
            for seen in (mine, first, second)
        ]
        assert ends == ["finished", "finished", "failed"]
        assert first.event("rl.run.config").body == {"lr": 0.1}


def test_variables_that_name_the_processs_run_do_not_name_a_handle(
    tmp_path: Path,
) -> None:
    named = {
        "OTEL_BRIDGE_RUN_ID": "mine",
        "OTEL_BRIDGE_RUN_NAME": "mine",
        "WANDB_RUN_ID": "w",
        "WANDB_SWEEP_ID": "s",
        "OTEL_BRIDGE_PROJECT": "p",
    }
    with environment_of({**held(tmp_path), **named}):
        own = otel_bridge.init()
        named_only = otel_bridge.init(name="trial", handle=True)
        nameless = otel_bridge.init(handle=True)
        joined = otel_bridge.init(id="elsewhere", handle=True)

        assert (own.id, own.id_in("wandb")) == ("mine", "w")
        assert (named_only.project, named_only.name) == ("p", "trial")
        assert named_only.id_in("wandb") == named_only.id
        swept = [
            "WANDB_SWEEP_ID" in one.facts.env
            for one in (own, named_only, nameless, joined)
        ]
        assert swept == [True, False, False, False]
        assert len({own.id, named_only.id, nameless.id, joined.id}) == 4
        assert joined.id == "elsewhere"
        assert os.environ["OTEL_BRIDGE_RUN_NAME"] == "mine"
        for one in (named_only, nameless, joined, own):
            one.finish()


def test_a_new_run_is_asked_for_handles_too_and_those_that_they_hand_their_variables_to_join_them(
    tmp_path: Path,
) -> None:
    env = {**held(tmp_path), "OTEL_BRIDGE_NEW_RUN": "1"}
    with environment_of(env):
        own = otel_bridge.init("tune", "own")
        first, second = (
            otel_bridge.init("tune", "lr-1", handle=True) for _ in range(2)
        )

        assert first.name.startswith("lr-1-")
        assert len({own.name, first.name, second.name}) == 3
        assert (
            run_script(
                "import otel_bridge; otel_bridge.init()", {**env, **first.env()}
            ).returncode
            == 0
        )
        for one in (first, second, own):
            one.finish()

    assert sorted(seen.header.run_name for seen in seen_in(tmp_path)) == sorted(
        [own.name, first.name, first.name, second.name]
    )


def test_too_many_handles_are_an_error_until_one_has_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_runs, "MAX_HANDLES", 2)
    with environment_of(held(tmp_path)):
        first, second = (
            otel_bridge.init("p", name, handle=True) for name in ("a", "b")
        )
        with pytest.raises(
            ConfigError, match=r"2 handles are open in this process.*call finish\(\)"
        ):
            otel_bridge.init("p", "c", handle=True)
        first.finish()

        third = otel_bridge.init("p", "c", handle=True)

        assert third.recording
        for one in (second, third):
            one.finish()


def test_handles_that_leave_no_file_to_the_program_are_an_error_that_names_the_limit(
    tmp_path: Path,
) -> None:
    code = """
    import resource, otel_bridge
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    runs = [otel_bridge.init("p", "own")]
    try:
        while True:
            runs.append(otel_bridge.init("p", f"t{len(runs)}", handle=True))
    except otel_bridge.ConfigError as exc:
        print(exc)
    for run in runs:
        run.finish()
    files = []
    try:
        while True:
            files.append(open("/dev/null"))
    except OSError:
        pass
    try:
        otel_bridge.init("p", "own")
    except otel_bridge.ConfigError as exc:
        print(exc)
    """

    done = run_script(code, held(tmp_path))

    handles, own = done.stdout.splitlines()
    assert handles.startswith("init(handle=True): ")
    assert (
        "the 64 open files that this process may have; raise that limit (`ulimit -n`), or call finish()"
        in handles
    )
    assert own.startswith("init() cannot begin a run: [Errno 24] Too many open files: ")
    assert (
        "; this process may have 64 open files: raise that limit (`ulimit -n`), or close files"
        in own
    )
    assert len(seen_in(tmp_path)) > 8


def test_a_handle_takes_no_instruments_of_the_process(tmp_path: Path) -> None:
    with environment_of(held(tmp_path)), pytest.raises(ConfigError, match="drop otel"):
        otel_bridge.init("p", "n", handle=True, otel=True)

    assert seen_in(tmp_path) == []


def test_a_handle_that_goes_on_in_its_run_counts_steps_on(tmp_path: Path) -> None:
    with environment_of(held(tmp_path)):
        for _ in range(2):
            with otel_bridge.init("p", "a", handle=True) as trial:
                trial.log({"loss": 1.0})

    assert [seen.steps for seen in seen_in(tmp_path)] == [[0], [1]]


def test_a_rollout_that_is_open_in_one_run_is_not_counted_at_the_end_of_another(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path) as own:
        trial = otel_bridge.init("tune", "a", handle=True)
        with own.rollout(step=1) as live:
            live.prompt = "2 + 2?"
            trial.log({"loss": 1.0})
            trial.finish()
        own.finish()

        for seen in seen_in(tmp_path):
            assert [event.name for event in seen.events] == ["rl.run.end"]


@pytest.mark.parametrize(
    ("last", "status_of_all"),
    [("", "finished"), ("raise RuntimeError('no')", "failed")],
)
def test_every_run_of_a_process_ends_with_it(
    tmp_path: Path, last: str, status_of_all: str
) -> None:
    code = f"""
    import otel_bridge
    runs = [otel_bridge.init("p", "own")] + [otel_bridge.init("p", name, handle=True) for name in "ab"]
    for run in runs:
        run.log({{"loss": 1.0}})
    {last}
    """

    done = run_script(code, held(tmp_path))

    assert (done.returncode != 0) == bool(last), done.stderr
    ends = [
        seen.event("rl.run.end").attributes["rl.run.status"]
        for seen in seen_in(tmp_path)
    ]
    assert ends == [status_of_all] * 3


def test_a_forked_child_has_a_part_of_its_own_in_each_handle(tmp_path: Path) -> None:
    code = """
    import os, otel_bridge
    trial = otel_bridge.init("p", "a", handle=True)
    trial.log({"x": 1.0})
    child = os.fork()
    trial.log({"x": 2.0 if child else 3.0})
    if child:
        assert os.waitpid(child, 0)[1] == 0
    """

    done = run_script(code, held(tmp_path))

    assert done.returncode == 0, done.stderr
    parent, child = seen_in(tmp_path)
    assert [row.values["x"] for row in parent.rows] == [1.0, 2.0]
    assert [row.values["x"] for row in child.rows] == [3.0]
    assert [seen.resource.get("rl.forked") for seen in (parent, child)] == [None, True]


KILLED = """
import os, signal, otel_bridge
runs = [otel_bridge.init("p", "own")] + [otel_bridge.init("p", name, handle=True) for name in ("done", "open")]
for run in runs:
    for step in range(20):
        run.log({"loss": step}, step=step)
runs[1].finish(timeout_s=60)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_after_a_kill_open_handles_are_killed_and_the_one_that_ended_is_not(
    tmp_path: Path,
) -> None:
    base = tmp_path / "runs"

    run(script(tmp_path / "train.py", KILLED), environment(base))

    until(lambda: ended(base))
    assert sorted(status(base)) == ["finished", "killed", "killed"]
    assert sorted(rows(base, "loss")) == sorted([*range(20)] * 3)
    until(lambda: not bridges(base))
