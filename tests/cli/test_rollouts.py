"""``otel-bridge rollouts``: what a person and a program see of a run's rollouts, while it runs and afterwards."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from otel_bridge.cli.rollouts.source import Payload
from otel_bridge.cli.rollouts.view import RolloutView
from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import read_report, write_report
from support.bridge.gated_tracker import install
from support.trainers.command_runs import (
    call,
    environment,
    only_folder,
    otel_bridge,
    program,
    started,
    until,
)

JOB = """
    import pathlib, sys, time
    import otel_bridge

    def messages(number):
        call = {"id": "c1", "type": "function", "function": {"name": "calculator", "arguments": '{"x": %d}' % number}}
        return [
            {"role": "user", "content": f"What is {number} + 1?"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": str(number + 1)},
            {"role": "assistant", "content": f"It is {number + 1}."},
        ]

    run = otel_bridge.init("maths", "ppo", role="explorer")
    for step in (1, 2):
        run.log_rollouts(
            [
                otel_bridge.Rollout(
                    messages(number), reward=number / 4, rewards={"format": 1.0}, group=f"p{number % 2}", sample=number,
                    id=f"r{step}-{number}", finish_reason="stop", policy_version=7,
                    error="sandbox died" if number == 3 else None,
                )
                for number in range(4)
            ],
            step=step,
        )
    run.log({"loss": 1.0}, step=3)
    run.log_rollouts([{"messages": messages(9), "reward": 1.0}], step=3, split="eval")
    pathlib.Path("ready").touch()
    while len(sys.argv) > 1 and not pathlib.Path("go").exists():
        time.sleep(0.01)
    run.log_reward("r1-0", 0.9, name="judge", explanation="cites its source")
    run.finish()
"""
SETTINGS = {"OTEL_BRIDGE_STEP_WATERMARK_S": "0.1", "OTEL_BRIDGE_STEP_STARTUP_S": "0"}


def rollouts(folder: Path, *arguments: str) -> tuple[int, list[str], str]:
    """Exit code, lines of standard output, and standard error of the command."""
    done = otel_bridge("rollouts", *arguments, cwd=folder, env=environment(folder))
    return done.returncode, done.stdout.splitlines(), done.stderr


def objects(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """What ``--json`` prints."""
    code, lines, _ = rollouts(folder, "--json", *arguments)
    assert code == 0
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that is over, kept by the exporter ``file``."""
    folder = tmp_path_factory.mktemp("ended")
    job = program(folder, "job.py", JOB)
    done = otel_bridge(
        "run",
        "--exporters",
        "file",
        "--",
        "python",
        job,
        cwd=folder,
        env=environment(folder, **SETTINGS),
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_newest_rollout_is_the_one_that_ended_last_whatever_the_ledgers_order(
    tmp_path: Path,
) -> None:
    code = """
        import otel_bridge
        run = otel_bridge.init("maths", "ppo", exporters="file")
        start = 1_795_970_879_960_587_963
        for rollout_id, age_ns in (("old", 2), ("newest", 0), ("newer", 1)):
            end = start + 1_000 - age_ns
            run.log_rollouts([otel_bridge.Rollout(id=rollout_id, start_unix_ns=start, end_unix_ns=end)])
        run.finish()
    """
    done = call(
        ["python", program(tmp_path, "job.py", code)],
        cwd=tmp_path,
        env=environment(tmp_path, **SETTINGS),
    )
    assert done.returncode == 0, done.stderr

    shown = [found["rollout_id"] for found in objects(tmp_path)]
    backwards = [found["rollout_id"] for found in objects(tmp_path, "--reverse")]

    assert shown == ["newest", "newer", "old"]
    assert backwards == shown[::-1]


def test_a_rollout_is_shown_with_its_facts_and_its_messages_by_role(
    ended: Path,
) -> None:
    code, lines, rest = rollouts(ended, "--id", "r1-0")

    trace = objects(ended, "--id", "r1-0")[0]["id"]
    facts = (
        "step 1 · group p0 · sample 0 · id r1-0 · reward 0 (format 1, judge 0.9) · finish stop · policy 7 · "
        "2 turns, 1 tool call"
    )
    assert code == 0
    assert lines == [
        f"maths/ppo ({only_folder(ended / '.otel-bridge').run_id})",
        "",
        f"explorer/rollouts · {facts} · trace {trace}",
        "  later: judge 0.9 · cites its source",
        "  user",
        "    What is 0 + 1?",
        "  assistant",
        '    → calculator({"x":0})',
        "  tool calculator",
        "    1",
        "  assistant",
        "    It is 1.",
    ]
    assert rest == "1 of 1 that match, 9 here\n"


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (["--step", "1", "--sort", "reward", "--limit", "2"], ["r1-3", "r1-2"]),
        (
            ["--step", "1", "--sort", "reward", "--reverse", "--limit", "2"],
            ["r1-0", "r1-1"],
        ),
        (["--group", "p1", "--step", "2", "--sort", "reward"], ["r2-3", "r2-1"]),
        (["--errors", "--sort", "step"], ["r2-3", "r1-3"]),
        (["--split", "eval"], [None]),
        (
            ["--split", "train", "--step", "1", "--sort", "reward", "--limit", "1"],
            ["r1-3"],
        ),
        (["--role", "trainer"], []),
        (["--run", "ppo", "--id", "r2-2"], ["r2-2"]),
    ],
)
def test_rollouts_are_chosen_and_ordered(
    ended: Path, arguments: list[str], ids: list[str | None]
) -> None:
    assert [one["rollout_id"] for one in objects(ended, *arguments)] == ids


def test_json_has_all_of_a_rollout_and_all_rollouts(ended: Path) -> None:
    found = objects(ended)

    assert len(found) == 9
    one = next(each for each in found if each["rollout_id"] == "r1-3")
    assert {key: one[key] for key in ("step", "split", "group", "sample", "reward", "error", "failed", "turns")} == {
        "step": 1, "split": None, "group": "p1", "sample": 3, "reward": 0.75, "error": "sandbox died",
        "failed": True, "turns": 2,
    }  # fmt: skip
    assert [message["role"] for message in one["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [span["kind"] for span in one["spans"]] == [
        "span",
        "generation",
        "tool",
        "generation",
    ]


def test_while_the_bridge_runs_and_a_tracker_is_down_they_come_from_the_ledger(
    tmp_path: Path,
) -> None:
    extra = {
        "OTEL_BRIDGE_EXPORTERS": "gated",
        "GATED_BLOCKED": "1",
        "OTEL_BRIDGE_RETRY_AFTER_EXIT_S": "1",
        **SETTINGS,
        **install(tmp_path),
    }
    job = program(tmp_path, "job.py", JOB)
    with started(
        ["python", job, "wait"], cwd=tmp_path, env=environment(tmp_path, **extra)
    ) as process:
        found = until(lambda: _nine(tmp_path), "the rollouts in the ledger")

        (tmp_path / "go").touch()
        process.wait(60)

    assert {one["rollout_id"] for one in found} == {
        *(f"r{step}-{n}" for step in (1, 2) for n in range(4)),
        None,
    }
    late = until(
        lambda: [
            one for one in objects(tmp_path, "--id", "r1-0") if one["evaluations"]
        ],
        "the evaluation",
    )
    assert late[0]["rewards"] == {"format": 1.0, "judge": 0.9}


def _nine(folder: Path) -> list[dict[str, Any]] | None:
    done = otel_bridge("rollouts", "--json", cwd=folder, env=environment(folder))
    lines = done.stdout.splitlines()
    return (
        [json.loads(line) for line in lines]
        if done.returncode == 0 and len(lines) == 9
        else None
    )


def test_what_was_delivered_and_deleted_is_said(tmp_path: Path) -> None:
    job = program(tmp_path, "job.py", JOB)
    env = environment(tmp_path, **SETTINGS)
    otel_bridge(
        "run", "--exporters", "console", "--", "python", job, cwd=tmp_path, env=env
    )

    code, lines, rest = rollouts(tmp_path)

    assert (code, lines[1:]) == (0, [])
    assert rest == (
        "0 of 0 rollouts shown; 9 more were delivered and deleted here: look in the trackers, "
        "or add the exporter file to keep rollouts here\n"
    )


def test_a_run_that_nobody_has_read_says_how_it_is_delivered(tmp_path: Path) -> None:
    job = program(tmp_path, "job.py", JOB)
    call(
        ["python", job],
        cwd=tmp_path,
        env=environment(
            tmp_path, OTEL_BRIDGE_OFFLINE="1", OTEL_BRIDGE_EXPORTERS="file"
        ),
    )
    folder = only_folder(tmp_path / ".otel-bridge")
    size_bytes = sum(segment.size_bytes for segment in folder.segments())
    unread = f"maths/ppo ({folder.run_id}): no bridge has read it yet"

    assert rollouts(tmp_path) == (
        1,
        [],
        f"{unread}, {size_bytes:,} bytes wait; otel-bridge drain {folder.path}\n",
    )


def test_the_argument_may_be_an_id_where_there_are_runs(ended: Path) -> None:
    code, shown, _ = rollouts(ended, "r1-1")

    assert (code, len(shown)) == (0, len(rollouts(ended, "--id", "r1-1")[1]))
    assert 0 < len(shown) < len(rollouts(ended)[1])


def test_bad_calls_say_what_was_expected(ended: Path, tmp_path: Path) -> None:
    nowhere = rollouts(tmp_path, "nowhere")
    empty = rollouts(tmp_path, str(tmp_path))
    unsorted = rollouts(ended, "--sort", "beauty")
    negative = rollouts(ended, "--limit", "-1")
    unknown = rollouts(ended, "--run", "dqn")

    run_id = only_folder(ended / ".otel-bridge").run_id
    hint = "pass the folder that holds run folders, or set OTEL_BRIDGE_DIR"
    assert nowhere == (2, [], f"Error: nowhere: no such folder; {hint}\n")
    assert empty == (2, [], f"Error: {tmp_path}: no run folder here; {hint}\n")
    assert (unsorted[0], "'beauty' is not one of" in unsorted[2]) == (2, True)
    assert (negative[0], "-1 is not in the range" in negative[2]) == (2, True)
    assert unknown == (
        2,
        [],
        f"Error: {ended}/.otel-bridge: no run 'dqn' here; there are ppo ({run_id})\n",
    )


def test_runs_without_rollouts_are_one_line(tmp_path: Path) -> None:
    row = """
        import otel_bridge
        with otel_bridge.init("maths") as run:
            run.log({"loss": 1.0})
    """
    env = environment(tmp_path, OTEL_BRIDGE_EXPORTERS="file", OTEL_BRIDGE_NEW_RUN="1")
    for _ in range(2):
        call(["python", program(tmp_path, "row.py", row)], cwd=tmp_path, env=env)

    assert rollouts(tmp_path) == (0, [], "no rollouts\n")

    for folder in run_folders(tmp_path / ".otel-bridge"):
        report = read_report(folder)
        assert report is not None
        write_report(folder, replace(report, waiting={"steps": 1, "rollouts": 2}))
    waits = "no rollouts yet: 4 wait until their step closes\n"
    assert rollouts(tmp_path) == (0, [], waits)


def test_a_damaged_ledger_is_said_and_the_files_are_not_treated_as_all(
    ended: Path, tmp_path: Path
) -> None:
    source = only_folder(ended / ".otel-bridge")
    copy = tmp_path / "runs" / source.path.name
    (copy / "segments").mkdir(parents=True)
    (copy / "folder.json").write_bytes(source.format_path.read_bytes())
    (copy / "ledger.sqlite").write_bytes(b"no ledger at all" * 1000)

    code, lines, rest = rollouts(tmp_path, str(tmp_path / "runs"))

    assert (code, lines) == (1, [])
    assert "the ledger is damaged" in rest


def test_on_a_terminal_long_messages_are_clipped_with_a_note_and_control_characters_are_shown() -> (
    None
):
    payload: Payload = {
        "id": "ab" * 16, "key": "rollouts", "reward": None,
        "messages": [{"role": "assistant", "content": "\n".join(f"line {n}" for n in range(40)) + "\x1b[2J"}],
    }  # fmt: skip
    clipped, whole = io.StringIO(), io.StringIO()

    RolloutView(
        Console(
            file=clipped, width=60, force_terminal=True, no_color=True, highlight=False
        )
    ).rollout(payload)
    RolloutView(Console(file=whole, width=60, highlight=False, soft_wrap=True)).rollout(
        payload
    )

    assert "… 28 more lines; --full or --json shows all" in clipped.getvalue()
    assert "line 12" not in clipped.getvalue()
    assert whole.getvalue().splitlines()[-1] == "    line 39\\x1b[2J"


def test_the_training_steps_of_a_rollout_are_not_parts_of_its_reward() -> None:
    payload: dict[str, Any] = {
        "id": "1", "key": "r", "reward": 1.2, "rewards": {"format": 0.2, "trained_step": 8},
        "trained_steps": [7, 8], "messages": [{"role": "user", "content": "2 + 2?"}],
    }  # fmt: skip
    printed = io.StringIO()

    RolloutView(Console(file=printed, width=400)).rollout(payload)

    facts = "r · reward 1.2 (format 0.2) · trained_step 7, 8 · trace 1"
    assert facts in printed.getvalue().splitlines()


def test_a_picture_in_a_message_is_named_and_its_bytes_are_not_shown() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0K"}},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        {"type": "blob", "content": "iVBORw0K"},
        {"type": "text", "text": "What is it?"},
    ]
    payload: dict[str, Any] = {
        "id": "1",
        "key": "r",
        "messages": [{"role": "user", "content": parts}],
    }
    printed = io.StringIO()

    RolloutView(Console(file=printed, width=400)).rollout(payload)

    texts = ["[image]", "https://example.org/a.png", "[media]", "What is it?"]
    assert [line.strip() for line in printed.getvalue().splitlines()][-4:] == texts


def test_a_line_break_in_a_name_forges_no_line() -> None:
    forged = "g\n  reward 1.0"
    payload: dict[str, Any] = {
        "id": "1", "key": forged, "split": forged, "group": forged, "rollout_id": forged, "error": forged,
        "messages": [{"role": forged, "name": forged, "content": "one\ntwo"}],
    }  # fmt: skip
    whole = io.StringIO()

    RolloutView(Console(file=whole, width=400)).rollout(payload)

    lines = whole.getvalue().splitlines()
    assert len(lines) == 6, lines
    assert lines[-2:] == ["    one", "    two"]
