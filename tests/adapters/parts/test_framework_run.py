"""The run of a framework: which names it has, when it begins and ends, and that no failure reaches the framework."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from pathlib import Path

import pytest

import otel_bridge
from otel_bridge.adapters.parts.framework_run import FrameworkRun, RunNames, guarded
from otel_bridge.emit.config.run_request import RunRequest
from otel_bridge.emit.process_runs import runs
from otel_bridge.emit.run import Run
from support.trainers.emit_samples import environment_of, held, run_in, seen_in


def names_of(base: Path) -> list[tuple[str, str, str | None]]:
    return [
        (seen.header.project, seen.header.run_name, seen.header.role)
        for seen in seen_in(base)
    ]


def log_one(names: RunNames) -> None:
    FrameworkRun("fake", names).begin().log({"loss": 1.0}, 1)


def test_nothing_begins_before_the_first_record(tmp_path: Path) -> None:
    with environment_of(held(tmp_path)):
        recording = FrameworkRun("fake", RunNames("p", "a"), config={"lr": 0.1})
        recording.flush()
        recording.finish()
        before = seen_in(tmp_path)
        recording.begin().log({"loss": 1.0}, 1)

        (seen,) = seen_in(tmp_path)
        assert (before, seen.steps, seen.event("rl.run.config").body is not None) == (
            [],
            [1],
            True,
        )


@pytest.mark.parametrize(
    ("names", "variables", "expected"),
    [
        (RunNames("p", "a", "trainer"), {}, ("p", "a", "trainer")),
        (RunNames("p", "a", "trainer"), {"WANDB_PROJECT": "w", "WANDB_NAME": "n"}, ("p", "a", "trainer")),
        (
            RunNames("p", "a", "trainer"),
            {"OTEL_BRIDGE_PROJECT": "q", "OTEL_BRIDGE_RUN_NAME": "b", "OTEL_BRIDGE_ROLE": "r"},
            ("q", "b", "r"),
        ),
        (RunNames(None, "a", None, "huggingface"), {}, ("huggingface", "a", None)),
        (RunNames(None, "a", None, "huggingface"), {"WANDB_PROJECT": "w"}, ("w", "a", None)),
        (RunNames(None, "a", None, "huggingface"), {"MLFLOW_EXPERIMENT_NAME": "m"}, ("m", "a", None)),
        (
            RunNames("p", "a"),
            {
                "OTEL_BRIDGE_PROJECT": "made", "OTEL_BRIDGE_GENERATED_PROJECT": "made",
                "OTEL_BRIDGE_RUN_NAME": "up", "OTEL_BRIDGE_GENERATED_NAME": "up",
            },
            ("p", "a", None),
        ),
    ],
)  # fmt: skip
def test_variables_of_otel_bridge_win_and_those_of_trackers_win_over_a_default(
    tmp_path: Path,
    names: RunNames,
    variables: dict[str, str],
    expected: tuple[str, str, str | None],
) -> None:
    with environment_of({**held(tmp_path), **variables}):
        log_one(names)

        assert names_of(tmp_path) == [expected]


def test_loggers_with_the_same_names_share_the_run_and_another_name_begins_another(
    tmp_path: Path,
) -> None:
    with environment_of(held(tmp_path)):
        first = FrameworkRun("fake", RunNames("p", "a"))
        first.begin().log({"loss": 1.0}, 1)
        log_one(RunNames("p", "a"))
        log_one(RunNames("p", "b"))

        one, two = seen_in(tmp_path)
        assert [(one.header.run_name, one.steps), (two.header.run_name, two.steps)] == [
            ("a", [1, 1]),
            ("b", [1]),
        ]


def test_a_name_that_only_the_framework_accepts_is_cleaned(tmp_path: Path) -> None:
    with environment_of(held(tmp_path)):
        log_one(RunNames("p\n", "run\t1"))

        assert names_of(tmp_path) == [("p", "run1", None)]


@pytest.mark.parametrize("name", ["a", None])
def test_a_logger_whose_run_another_has_replaced_goes_on_in_its_own(
    tmp_path: Path, name: str | None
) -> None:
    with environment_of(held(tmp_path)):
        first = FrameworkRun("fake", RunNames("p", name))
        second = FrameworkRun("fake", RunNames("p", "b"))
        for step in range(3):
            first.begin().log({"loss": 1.0}, step)
            second.begin().log({"loss": 2.0}, step)
        first.finish()

        steps: dict[str, list[int | None]] = {}
        for process in seen_in(tmp_path):
            steps.setdefault(process.header.run_name, []).extend(process.steps)
        assert sorted(steps.values()) == [[0, 1, 2], [0, 1, 2]]


def test_a_framework_that_calls_every_rank_records_on_its_rank_0_only(
    tmp_path: Path,
) -> None:
    with environment_of(held(tmp_path)):
        for rank in (1, 0):
            recording = FrameworkRun(
                "fake", RunNames("p", "a"), is_rank_zero=lambda rank=rank: rank == 0
            )
            recording.begin().log({"loss": 1.0}, rank)
            recording.finish("failed")

        assert [seen.steps for seen in seen_in(tmp_path)] == [[0]]


@pytest.mark.parametrize("is_new", ["0", "1"])
@pytest.mark.parametrize(
    "names", [RunNames("p", "a"), RunNames("p"), RunNames(), RunNames(role="trainer")]
)
def test_a_record_after_finish_begins_the_run_again_where_it_was(
    tmp_path: Path, names: RunNames, is_new: str
) -> None:
    with environment_of(held(tmp_path) | {"OTEL_BRIDGE_NEW_RUN": is_new}):
        recording = FrameworkRun("fake", names)
        recording.begin().log({"loss": 1.0}, 4)
        recording.finish()
        recording.begin().log({"loss": 2.0})

        first, second = seen_in(tmp_path)
        assert names_of(tmp_path)[0] == names_of(tmp_path)[1]
        assert first.header.generated == second.header.generated
        assert (first.header.run_id, first.steps, second.steps) == (
            second.header.run_id,
            [4],
            [5],
        )


def test_a_run_of_the_program_is_used_as_it_is_and_not_ended(tmp_path: Path) -> None:
    with run_in(tmp_path, project="mine", name="own") as run:
        recording = FrameworkRun("fake", RunNames("p", "a"))
        recording.begin().log({"loss": 1.0}, 1)
        recording.finish("failed")
        still = run.recording
        run.finish()
        recording.begin().log({"loss": 1.0}, 2)

        (seen,) = seen_in(tmp_path)
        assert (still, seen.header.run_name, seen.steps) == (True, "own", [1])


def test_after_a_run_of_the_program_in_between_the_adapters_own_run_goes_on(
    tmp_path: Path,
) -> None:
    with environment_of(held(tmp_path)):
        recording = FrameworkRun("fake", RunNames("p"))
        own = recording.begin()
        with otel_bridge.init("p", "between") as between:
            assert recording.begin() is between
        recording.begin().log({"loss": 1.0}, 2)

        assert [
            (seen.header.run_id, seen.steps) for seen in seen_in(tmp_path) if seen.rows
        ] == [(own.id, [2])]


def test_a_setting_that_cannot_be_used_is_one_line_and_the_framework_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with environment_of(held(tmp_path, OTEL_BRIDGE_EXPORTERS="wadnb")):
        recording = FrameworkRun("fake", RunNames("p", "a"))
        recording.begin().log({"loss": 1.0}, 1)
        recording.begin().log({"loss": 1.0}, 2)
        recording.finish()

        err = capsys.readouterr().err
        assert (err.count("otel-bridge: fake continues"), "wadnb" in err) == (1, True)


def test_without_an_exporter_the_run_is_kept_with_a_line_and_its_children_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with environment_of(
        {**held(tmp_path), "OTEL_BRIDGE_OFFLINE": "", "OTEL_BRIDGE_QUIET": ""}
    ):
        recording = FrameworkRun("fake", RunNames("p", "a"))
        recording.begin().log({"loss": 1.0}, 1)
        inside = {
            name: os.environ.get(name)
            for name in ("OTEL_BRIDGE_OFFLINE", "OTEL_BRIDGE_EXPORTERS")
        }
        recording.finish()

        (seen,) = seen_in(tmp_path)
        assert (seen.steps, seen.header.hold, inside["OTEL_BRIDGE_OFFLINE"]) == (
            [1],
            True,
            "",
        )
        assert not inside["OTEL_BRIDGE_EXPORTERS"]
        lines = capsys.readouterr().err.splitlines()
        (first,) = [
            number
            for number, line in enumerate(lines)
            if f"no exporter chosen, kept in {tmp_path}" in line
        ]
        assert "deliver with: otel-bridge drain" in lines[first + 1]


def test_exporters_none_records_nothing(tmp_path: Path) -> None:
    with environment_of(
        {**held(tmp_path), "OTEL_BRIDGE_OFFLINE": "", "OTEL_BRIDGE_EXPORTERS": "none"}
    ):
        recording = FrameworkRun("fake", RunNames("p", "a"))
        recording.begin().log({"loss": 1.0}, 1)
        recording.begin().log({"loss": 1.0}, 2)

        assert seen_in(tmp_path) == []


def test_loggers_of_two_names_begin_no_run_anew_at_every_record_under_exporters_none(
    tmp_path: Path,
) -> None:
    with environment_of(
        {**held(tmp_path), "OTEL_BRIDGE_OFFLINE": "", "OTEL_BRIDGE_EXPORTERS": "none"}
    ):
        loggers = [FrameworkRun("fake", RunNames("p", name)) for name in ("a", "b")]
        begun: list[list[Run | None]] = []
        for step in range(4):
            for logger in loggers:
                logger.begin().log({"loss": 1.0}, step)
            begun.append([logger.run for logger in loggers])

        assert begun[1:] == [begun[1]] * 3


def test_a_child_that_is_forked_while_another_thread_begins_the_run_can_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with environment_of(held(tmp_path)):
        recording = FrameworkRun("fake", RunNames("p", "a"))
        inside, goes_on = threading.Event(), threading.Event()
        real_begin = runs.begin

        def begin(request: RunRequest) -> Run:
            inside.set()
            goes_on.wait()
            return real_begin(request)

        monkeypatch.setattr(runs, "begin", begin)
        thread = threading.Thread(target=recording.begin)
        thread.start()
        inside.wait()
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # a child that waits for a lock is killed
            monkeypatch.undo()
            recording.begin().log({"loss": 1.0}, 1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        goes_on.set()
        thread.join()

        assert status == 0
        assert [seen.steps for seen in seen_in(tmp_path) if seen.rows] == [[1]]


def test_a_copy_in_another_process_begins_the_run_by_itself(tmp_path: Path) -> None:
    with environment_of(held(tmp_path)):
        recording = FrameworkRun(
            "fake", RunNames("p", "a", "trainer"), config={"lr": 0.1}
        )
        recording.begin().log({"loss": 1.0}, 1)
        copy: FrameworkRun = pickle.loads(pickle.dumps(recording))

        assert (copy.names, copy.begin()) == (
            recording.names,
            otel_bridge.current_run(),
        )


@guarded
def on_log() -> int:
    raise KeyError("loss")


def test_a_failure_of_an_adapter_is_counted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_in(tmp_path) as run:
        assert on_log() is None
        run.finish()

    counted = capsys.readouterr().err
    assert (
        "dropped 1: calls of a framework that its adapter failed on; please report it [adapter_failed], first"
        in counted
    )
    assert "on_log: KeyError: 'loss'" in counted


def test_failures_before_the_run_begins_are_counted_in_it_and_the_first_is_printed_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with environment_of(held(tmp_path)):
        on_log()
        on_log()
        printed = capsys.readouterr().err
        recording = FrameworkRun("fake", RunNames("p", "a"))
        recording.begin().log({"loss": 1.0}, 1)
        recording.finish()

        assert printed.splitlines() == [
            "otel-bridge: an adapter failed, and the framework continues: on_log: KeyError: 'loss'"
        ]
        counted = capsys.readouterr().err
        assert (
            "dropped 2: calls" in counted,
            "first 'on_log: KeyError: 'loss''" in counted,
        ) == (
            True,
            True,
        )


def test_an_error_without_a_text_does_not_reach_the_framework(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unprintable(Exception):
        def __str__(self) -> str:
            raise ValueError

    @guarded
    def fail() -> None:
        raise Unprintable

    with run_in(tmp_path) as run:
        fail()
        run.finish()

    assert "fail: Unprintable'" in capsys.readouterr().err
