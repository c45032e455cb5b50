"""What `otel-bridge status` prints of a report and of the state of a run."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from typing import cast

import pytest
from rich.console import Console

from otel_bridge.cli.status.run_state import DirectoryUse, RunState
from otel_bridge.cli.status.source import Overview
from otel_bridge.cli.status.view import (
    next_commands,
    overview_view,
    run_table,
    space_line,
    state_line,
    warnings,
)
from otel_bridge.exporter import OTLP
from otel_bridge.journal.report import ExporterReport, ProcessReport, Report, RoleReport

LIVE = RunState("9f2c", "", bridge_alive=True)


def test_a_tracker_named_later_says_how_many_records_it_missed() -> None:
    report = Report(
        exporters={"file": ExporterReport(), "trackio": ExporterReport(missed=7)}
    )

    assert warnings(report) == [
        "trackio was named later: it lacks 7 records that had been deleted by then"
    ]


@pytest.mark.parametrize(("ended", "label"), [(True, "ended"), (False, "stopped")])
def test_otlp_is_ended_and_not_stopped_once_all_of_the_run_is_delivered(
    ended: bool, label: str
) -> None:
    report = Report(exporters={OTLP: ExporterReport(state="idle")}, ended=ended)
    run = RunState("9f2c", "/runs/9f2c", bridge_alive=False, report=report)

    assert f"otlp {label}, 0 waiting" in state_line(run, here=True)


def test_what_was_refused_leads_to_dead_letters_where_these_can_be_listed() -> None:
    refused = ExporterReport(dead_letters=2)
    trackers = Report(exporters={"mlflow": refused}, ended=True)
    forwarded = Report(exporters={OTLP: refused}, ended=True)
    run = replace(LIVE, folder="/runs/9f2c")

    assert warnings(trackers) == [
        "mlflow refused 2 records for good: otel-bridge dead-letters list"
    ]
    assert len(next_commands(replace(run, report=trackers), here=True)) == 1
    assert warnings(forwarded) == ["otlp refused 2 records for good: see bridge.log"]
    assert next_commands(replace(run, report=forwarded), here=True) == []


def test_one_row_of_a_tracker_that_is_no_longer_named_is_in_the_singular() -> None:
    former = {"mlflow": ExporterReport(rows=1, written=1)}
    run = replace(LIVE, report=Report(position=2, former=former))
    console = Console(file=io.StringIO(), width=200)

    console.print(overview_view(Overview("", [run])))

    said = cast("io.StringIO", console.file).getvalue()
    assert "has 1 row and 0 rollouts; 1 record did not reach it" in said


@pytest.mark.parametrize("owed", [{}, {"mlflow": 12}])
def test_what_a_tracker_that_is_no_longer_named_lacks_is_counted_in_one_line(
    owed: dict[str, int],
) -> None:
    report = Report(position=30, former={"mlflow": ExporterReport()}, owed=owed)
    console = Console(file=io.StringIO(), width=200)

    console.print(overview_view(Overview("", [replace(LIVE, report=report)])))

    said = cast("io.StringIO", console.file).getvalue()
    assert "mlflow, no longer named" in said
    assert (
        "30 records did not reach it" in said,
        "did not get 12 records" in said,
    ) == (
        not owed,
        bool(owed),
    )


def test_what_was_dropped_is_said_in_words() -> None:
    report = Report(drops={"none": 50, "trace/other": 2, "text": 0})

    other = "dropped 2: traces that are not rollouts: otlp, console and file get them [trace/other]"
    report.drop_keys = {"none": "train_runtime", "trace/other": "\x1b]52;c;aGk=\x07"}
    assert warnings(report) == [
        "dropped 50: values that are None [none], first 'train_runtime'",
        f"{other}, first '\\x1b]52;c;aGk=\\x07'",
    ]
    report.drop_keys = {}
    assert warnings(report) == [
        "dropped 50: values that are None [none]",
        other,
    ]


def test_a_reason_without_words_leads_to_the_page() -> None:
    report = Report(drops={"undecodable": 2})

    assert warnings(report) == ["dropped 2: see emitting-reference.md [undecodable]"]


def test_what_is_forwarded_is_not_counted_in_rows() -> None:
    console, report = (
        Console(file=io.StringIO(), width=200),
        Report(position=9, exporters={"otlp": ExporterReport(written=7)}),
    )

    console.print(run_table(LIVE, report, time.time_ns()))

    last = console.file.getvalue().splitlines()[-1]
    assert last.split()[:3] == ["otlp", "idle", "2"]


def test_what_the_installed_tracker_cannot_do_and_what_was_left_out_is_shown() -> None:
    console = Console(file=io.StringIO(), width=200)
    less = ExporterReport(
        degraded=["Tracker 1 shows no rollouts"],
        left_out={"rollouts: Tracker 1 shows none": 1204},
    )

    report = Report(exporters={"tracker": less})
    console.print(run_table(LIVE, report, time.time_ns()))

    assert console.file.getvalue().splitlines()[-2:] == [
        "tracker: Tracker 1 shows no rollouts",
        "tracker left out 1,204 rollouts: Tracker 1 shows none",
    ]


@pytest.mark.parametrize(
    ("processes", "said"),
    [
        ({}, "running"),
        ({"a": ProcessReport(alive=True), "b": ProcessReport(alive=False)}, "running"),
        ({"a": ProcessReport(alive=False)}, "ending (none of its processes runs)"),
        (
            {"bridge": ProcessReport(alive=True, bridge=True)},
            "ending (none of its processes runs)",
        ),
    ],
)
def test_a_run_whose_processes_are_all_gone_is_not_said_to_run(
    processes: dict[str, ProcessReport], said: str
) -> None:
    console = Console(file=io.StringIO(), width=200)

    report = Report(project="maths", name="ppo", processes=processes)
    console.print(run_table(LIVE, report, time.time_ns()))

    assert console.file.getvalue().splitlines()[0] == f"maths/ppo (9f2c) {said}"


def test_rollouts_that_wait_for_their_step_are_not_named_incomplete() -> None:
    report = Report(waiting={"rows": 0, "rollouts": 50})
    state = RunState("r1", "/runs/r1", report=report)
    console = Console(width=200, record=True, file=io.StringIO())

    console.print(run_table(state, report, time.time_ns()))

    assert "0 rows/s in; still open: 50 rollouts; " in console.export_text()


@pytest.mark.parametrize(
    ("alive", "unseen_senders", "status", "counted"),
    [
        (1, False, "running, no bridge", "1 of 2 alive"),
        (0, False, "no bridge, and none of its processes runs", "0 of 2 alive"),
        (2, True, "running, no bridge", "2 of 2 alive when last seen"),
    ],
)
def test_without_a_bridge_only_what_is_known_now_is_shown(
    alive: int, unseen_senders: bool, status: str, counted: str
) -> None:
    report = Report(
        time_unix_ns=time.time_ns(),
        project="maths",
        name="ppo",
        processes={
            "i1": ProcessReport(
                role="trainer", alive=bool(alive and not unseen_senders)
            )
        },
        roles={"trainer": RoleReport(alive, 2)},
        exporters={
            "file": ExporterReport(state="writing", rows_per_s=5.0),
            "wandb": ExporterReport(state="blocked"),
        },
    )
    state = RunState("r1", "/runs/r1", report=report, unseen_senders=unseen_senders)
    console = Console(width=200, record=True, file=io.StringIO())

    console.print(run_table(state, report, time.time_ns()))

    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert lines[0] == f"maths/ppo (r1) {status}, last seen 0 s ago"
    assert [
        f"trainer - 0 {counted}" in lines,
        "file stopped 0 0 0 0 0 s 0 B" in lines,
    ] == [
        True,
        True,
    ]
    assert "wandb blocked 0 0 0 0 0 s 0 B" in lines
    assert (
        state_line(state, here=True)
        == f"maths/ppo (r1) {status} ; file stopped, 0 waiting; wandb blocked, 0 waiting"
    )


def test_a_run_that_is_over_and_not_yet_delivered_is_not_said_to_run() -> None:
    console = Console(file=io.StringIO(), width=200)
    gone = {"a": ProcessReport(alive=False)}

    report = Report(project="maths", name="ppo", status="failed", processes=gone)
    console.print(run_table(LIVE, report, time.time_ns()))

    assert (
        console.file.getvalue().splitlines()[0] == "maths/ppo (9f2c) failed, delivering"
    )


def test_a_run_that_has_not_ended_and_has_no_bridge_names_the_command_that_delivers_it() -> (
    None
):
    report = Report(1, "p", "n", status="running", exporters={OTLP: ExporterReport()})
    gave_up = RunState("r", "/runs/r", report=report)
    ended = replace(gave_up, report=replace(report, ended=True))

    shown = [
        next_commands(state, here=True)
        for state in (gave_up, replace(gave_up, bridge_alive=True), ended)
    ]

    assert shown == [["  otel-bridge drain /runs/r"], [], []]


def test_an_ended_run_without_an_exporter_is_shown_with_what_waits_and_the_command_that_delivers_it() -> (
    None
):
    report = Report(1, "p", "n", status="finished", ended=True, position=3)
    console = Console(file=io.StringIO(), width=200)

    console.print(run_table(LIVE, report, time.time_ns()))

    commands = [
        next_commands(RunState("r", "/my runs/r", report=one), here=True)
        for one in (report, Report(ended=True))
    ]
    assert (
        "no exporter is chosen, and 3 records wait for one"
        in console.file.getvalue().splitlines()
    )
    assert commands == [["  otel-bridge drain --exporters trackio '/my runs/r'"], []]
    assert (
        state_line(RunState("r", "/r", report=report), here=True)
        == "p/n (r) finished ; no exporter, 3 waiting"
    )
    given_up = replace(report, discarded={"file": 3})
    assert (
        warnings(given_up),
        next_commands(RunState("r", "/r", report=given_up), here=True),
    ) == (
        ["file: 3 records were discarded with --discard"],
        [],
    )


@pytest.mark.parametrize(
    ("status", "said"),
    [("running", "trainer 9 10 0 of 1 alive"), ("finished", "trainer 9 10")],
)
def test_processes_are_counted_while_the_run_goes_on(status: str, said: str) -> None:
    report = Report(
        project="maths",
        name="ppo",
        status=status,
        ended=status != "running",
        steps={"trainer/step": 9},
        rows_by_axis={"trainer/step": 10},
        roles={"trainer": RoleReport(alive=0, processes=1)},
        # Neither a launcher nor the segment of an earlier bridge is a process of the run.
        processes={
            "i1": ProcessReport(role="trainer", alive=False),
            "i2": ProcessReport(),
            "i3": ProcessReport(),
        },
    )
    console = Console(width=200, record=True, file=io.StringIO())

    console.print(run_table(LIVE, report, time.time_ns()))

    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert said in lines
    assert any("processes" in line for line in lines) == (status == "running")


@pytest.mark.parametrize(
    ("count", "line"),
    [
        (1, "1 alert, last 5 min ago: kl above [redacted] (warn)"),
        (3, "3 alerts, last 5 min ago: kl above [redacted] (warn)"),
    ],
)
def test_a_line_has_the_number_of_alerts_and_the_last_one(
    count: int, line: str
) -> None:
    now_ns = 1_700_000_000 * 10**9
    last = {
        "title": "kl above hf_" + "a" * 34,
        "level": "warn",
        "time_unix_ns": now_ns - 300 * 10**9,
    }
    console = Console(width=200, record=True, file=io.StringIO())

    for report in (Report(alerts=count, last_alert=last), Report()):
        console.print(run_table(LIVE, report, now_ns))

    assert [
        one.strip() for one in console.export_text().splitlines() if "alert" in one
    ] == [line]


def test_the_rank_that_all_others_wait_for_is_named_after_some_seconds() -> None:
    now_ns = 1_700_000_000 * 10**9
    rank: dict[str, str | int] = {
        "rank": 3,
        "phase": "generate",
        "step": 12,
        "others": 7,
    }
    report = Report(
        awaited_ranks={
            "trainer": {**rank, "since_unix_ns": now_ns - 42 * 10**9},
            "explorer": {**rank, "since_unix_ns": now_ns - 10**9},
        }
    )
    console = Console(width=200, record=True, file=io.StringIO())

    console.print(run_table(LIVE, report, now_ns))

    lines = [
        line.strip() for line in console.export_text().splitlines() if "delays" in line
    ]
    assert lines == ["trainer: rank 3 delays 7 ranks for 42 s: generate of step 12"]


def test_the_rank_that_is_slow_in_most_steps_is_named() -> None:
    slow: dict[str, str | int | float] = {
        "rank": 1, "phase": "generate", "ratio": 1.96, "slow_steps": 7, "steps": 8,
    }  # fmt: skip
    console = Console(width=200, record=True, file=io.StringIO())

    report = Report(slow_ranks={"explorer": slow, "": slow})
    console.print(run_table(LIVE, report, time.time_ns()))

    rest = "the others wait for rank 1, which takes 2.0 times as long in generate, in 7 of the last 8 steps"
    lines = [
        line.strip()
        for line in console.export_text().splitlines()
        if "wait for" in line
    ]
    assert lines == [f"the run: {rest}", f"explorer: {rest}"]


def test_what_is_missing_of_engines_is_one_line() -> None:
    problems = [f"10.0.0.{number}:8000 no longer sends vllm:x" for number in range(5)]
    console = Console(width=300, record=True, file=io.StringIO())

    report = Report(engine_problems=problems)
    console.print(run_table(LIVE, report, time.time_ns()))
    console.print(run_table(LIVE, Report(), time.time_ns()))

    lines = [
        line.strip() for line in console.export_text().splitlines() if "engines" in line
    ]
    assert lines == [f"5 problems of engines: {'; '.join(problems[:3])}; and 2 more"]


def test_a_role_without_a_row_and_processes_without_a_role_are_counted() -> None:
    report = Report(
        steps={"step": 2}, roles={"": RoleReport(1, 2), "explorer": RoleReport(3, 3)}
    )
    console = Console(width=200, record=True, file=io.StringIO())

    console.print(run_table(LIVE, report, time.time_ns()))

    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert ["- 2 0 1 of 2 alive" in lines, "explorer - 0 3 of 3 alive" in lines] == [
        True,
        True,
    ]


def test_a_run_without_roles_has_no_column_of_roles() -> None:
    console = Console(width=200, record=True, file=io.StringIO())

    report = Report(
        steps={"step": 2}, rows_by_axis={"step": 2}, roles={"": RoleReport(1, 1)}
    )
    console.print(run_table(LIVE, report, time.time_ns()))

    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert lines[2:4] == ["last step rows processes last row", "2 2 1 of 1 alive"]


def test_rows_that_no_role_logged_are_counted_apart() -> None:
    report = Report(rows_by_axis={"step": 2}, derived_rows={"phases": 2, "engines": 1})
    console = Console(width=200, record=True, file=io.StringIO())

    console.print(run_table(LIVE, report, time.time_ns()))

    assert "rows made by the bridge: 2 of phases, 1 of engines" in console.export_text()


def test_runs_that_are_watched_have_an_empty_line_between_them() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    runs = [
        RunState(
            name, f"/{name}", bridge_alive=True, report=Report(project="p", name=name)
        )
        for name in "ab"
    ]

    console.print(overview_view(Overview("/", runs)))

    lines = [line.strip() for line in console.export_text().splitlines()]
    assert lines[lines.index("p/b (b) running") - 1] == ""


@pytest.mark.parametrize(("used_bytes", "is_full"), [(99, False), (100, True)])
def test_a_full_directory_is_shown_with_what_happens_and_what_to_do(
    used_bytes: int, is_full: bool
) -> None:
    run = RunState("a", "/a", bridge_alive=True, report=Report())
    room = DirectoryUse(used_bytes, 100, of_disk=True)

    line = space_line(Overview("/runs", [run], room))

    assert ("; full: new records are dropped until you free space" in line) == is_full


def test_the_keys_that_are_watched_are_small_curves() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    report = Report(
        project="p",
        name="a",
        featured={"loss": [1.0, 0.5, 0.0], "trainer/lr": [0.1, 0.1]},
    )

    console.print(
        overview_view(
            Overview("/", [RunState("a", "/a", bridge_alive=True, report=report)])
        )
    )

    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert "  loss        █▅▁  0" in lines
    assert "  trainer/lr  ▁▁  0.1" in lines
