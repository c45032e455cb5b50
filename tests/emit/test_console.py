from __future__ import annotations

from pathlib import Path

import pytest

from otel_bridge.emit import console
from otel_bridge.emit.config.identity import identify
from otel_bridge.emit.config.run_request import RunRequest
from otel_bridge.journal.report import ExporterReport, Report
from support.trainers.command_runs import call, environment, program

_RUN = identify(RunRequest(project="maths", name="ppo"), {}, Path.cwd(), launched=False)


def test_the_line_of_finish_reports_this_process_from_the_whole_run() -> None:
    report = Report(
        rows=1200, rollouts=1, exporters={"trackio": ExporterReport(view="tail -f log")}
    )

    assert console.ended(_RUN, "finished", 300, report, (), printed_drops={}) == [
        "maths/ppo finished: 300 rows logged by this process; the run has 1 rollout and 1,200 rows",
        "trackio: tail -f log",
    ]


def test_rows_that_the_bridge_makes_of_rollouts_and_phases_are_named() -> None:
    report = Report(
        rows=5, rollouts=3, derived_rows={"rollout statistics": 2, "phases": 1}
    )

    (line,) = console.ended(_RUN, "finished", 2, report, (), printed_drops={})

    assert line == (
        "maths/ppo finished: 3 rollouts and 5 rows, 2 of rollout statistics, 1 of phases"
    )


def test_what_waits_comes_by_itself() -> None:
    report = Report(rows=1, rollouts=0, waiting={"rows": 0, "traces": 0, "rollouts": 2})

    assert console.ended(_RUN, "finished", 1, report, (), printed_drops={})[1:] == [
        "waiting: 2 rollouts; delivery is automatic"
    ]


def test_the_lines_of_finish_explain_each_reason_of_drops() -> None:
    report = Report(rows=1, drops={"none": 1200, "x": 1}, drop_keys={"none": "kl"})

    assert console.ended(_RUN, "finished", 1, report, (), printed_drops={})[1:] == [
        "dropped 1,200: values that are None [none], first 'kl'",
        "dropped 1: see emitting-reference.md [x]",
    ]


def test_drops_that_the_process_has_just_printed_are_not_printed_again() -> None:
    report = Report(rows=1, drops={"none": 40, "text": 7})
    printed = {"none": 40, "text": 2}

    lines = console.ended(_RUN, "finished", 1, report, (), printed_drops=printed)

    assert len(lines) == 2
    assert lines[1].startswith("dropped 7: texts")


@pytest.mark.parametrize(
    ("exporter", "said"),
    [
        (ExporterReport(), []),
        (ExporterReport(found="it holds 3 rows already"), ["it holds 3 rows already"]),
        (
            ExporterReport(missed=1),
            [
                "trackio was named later: it lacks 1 record that had been deleted by then"
            ],
        ),
        (
            ExporterReport(dead_letters=2),
            ["trackio refused 2 records for good: otel-bridge dead-letters list"],
        ),
    ],
)
def test_what_a_tracker_held_before_and_what_it_never_gets_is_said(
    exporter: ExporterReport, said: list[str]
) -> None:
    assert console.found(Report(exporters={"trackio": exporter})) == said


def test_what_the_installed_tracker_cannot_do_and_what_was_left_out_is_in_the_last_line() -> (
    None
):
    less = ExporterReport(
        degraded=["Tracker 1 shows no rollouts"],
        left_out={"rollouts: Tracker 1 shows none": 1204},
    )

    lines = console.ended(
        _RUN,
        "finished",
        1,
        Report(rows=1, exporters={"tracker": less}),
        (),
        printed_drops={},
    )

    assert lines[1:] == [
        "Tracker 1 shows no rollouts",
        "tracker left out 1,204 rollouts: Tracker 1 shows none",
    ]


def test_a_run_of_which_nothing_is_known_says_its_own_rows() -> None:
    assert console.ended(
        _RUN, "failed", 0, None, ("not delivered yet",), printed_drops={}
    ) == [
        "maths/ppo failed: 0 rows logged by this process",
        "not delivered yet",
    ]


def test_what_a_blocked_exporter_has_not_got_is_kept_and_the_command_that_delivers_it_is_named(
    tmp_path: Path,
) -> None:
    assert [
        console.blocked_is_kept(tmp_path, names)
        for names in (["wandb"], ["wandb", "mlflow"])
    ] == [
        f"records that wandb lacks are kept; once this is fixed, run: otel-bridge drain {tmp_path}",
        f"records that wandb, mlflow lack are kept; once this is fixed, run: otel-bridge drain {tmp_path}",
    ]


@pytest.mark.parametrize("stderr", ["/dev/full", "/dev/null"])
def test_a_line_that_stderr_cannot_take_does_not_change_the_exit_code_of_the_program(
    tmp_path: Path, stderr: str
) -> None:
    code = """
        import otel_bridge
        with otel_bridge.init() as run:
            run.log({"loss": 0.5})
            raise SystemExit(3)
    """
    env = environment(tmp_path, OTEL_BRIDGE_OFFLINE="1", OTEL_BRIDGE_EXPORTERS="file")
    train = program(tmp_path, "train.py", code)

    done = call(["bash", "-c", f"python {train} 2>{stderr}"], cwd=tmp_path, env=env)

    assert done.returncode == 3
