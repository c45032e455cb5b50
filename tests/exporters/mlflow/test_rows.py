from __future__ import annotations

import dataclasses
import logging
import math
from pathlib import Path

import pytest

import otel_bridge_mlflow
from otel_bridge.errors import JournalError, PermanentError, RetryableError
from otel_bridge.exporter import RunInfo, RunningSteps, WritesAlerts, WritesSummary
from otel_bridge.records import Distribution, Row, Value
from otel_bridge.testing import MemoryTable, samples
from support.trackers import mlflow_reading
from support.trackers.mlflow_writing import opened, tagged

exporter = otel_bridge_mlflow.exporter


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return mlflow_reading.database(tmp_path_factory.mktemp("rows"))


@pytest.fixture
def run(tmp_path: Path) -> RunInfo:
    return samples.run_info(tmp_path, tmp_path.name, project="rows")


def held(uri: str, run: RunInfo) -> dict[str, list[tuple[int, float, int]]]:
    """Every metric of the run: key to (step, value, time in ms)."""
    api, (found,) = mlflow_reading.client(uri), mlflow_reading.runs_of(uri, run)
    return {
        key: [
            (metric.step, metric.value, metric.timestamp)
            for metric in api.get_metric_history(found.info.run_id, key)
        ]
        for key in found.data.metrics
    }


def stepless(key: str, value: float, position: int) -> Row:
    time = samples.START_UNIX_NS + position * samples.SECOND_NS
    return dataclasses.replace(
        samples.row(None, {key: value}),
        id=f"f:{position}",
        time_unix_ns=time,
        position=position,
    )


class FullTable(MemoryTable):
    is_full = True

    def put(self, key: str, value: bytes) -> None:
        if self.is_full:
            raise JournalError("the disk is full")
        super().put(key, value)


START_MS = samples.START_UNIX_NS // 1_000_000


def test_numbers_of_rollouts_are_metrics_only_on_request_or_when_a_program_logs_them(
    uri: str, run: RunInfo
) -> None:
    values = {
        "rollouts/total": 64.0,
        "rollouts/eval/kept": 16.0,
        "rollouts/reward/mean": 0.5,
    }
    statistics = dataclasses.replace(samples.row(3, values), id="s:trainer:train:3")

    opened(uri, run).write_rows([statistics])
    assert held(uri, run).keys() == {"trainer/rollouts/reward/mean"}

    opened(uri, run).write_rows([dataclasses.replace(statistics, id="m:a:3")])
    assert held(uri, run).keys() == {f"trainer/{key}" for key in values}


def test_steps_are_ints_and_times_are_those_of_log_in_milliseconds(
    uri: str, run: RunInfo
) -> None:
    row = dataclasses.replace(
        samples.row(-3, {"loss": 2}), time_unix_ns=samples.START_UNIX_NS + 1_999_999
    )

    opened(uri, run).write_rows([row])

    assert held(uri, run) == {"trainer/loss": [(-3, 2.0, START_MS + 1)]}


def test_infinities_become_the_largest_doubles_and_nan_stays(
    uri: str, run: RunInfo
) -> None:
    opened(uri, run).write_rows(
        [
            samples.row(
                0, {"up": math.inf, "down": -math.inf, "nan": math.nan}, role=None
            )
        ]
    )

    values = {key: metrics[0][1] for key, metrics in held(uri, run).items()}
    assert (values["up"], values["down"]) == (
        1.7976931348623157e308,
        -1.7976931348623157e308,
    )
    assert math.isnan(values["nan"])


def test_a_distribution_becomes_five_numbers_and_unknown_ones_are_left_out(
    uri: str, run: RunInfo
) -> None:
    bare = Distribution(count=4, sum=10.0, min=math.nan, max=math.nan)

    opened(uri, run).write_rows(
        [samples.row(1, {"grad": samples.distribution(), "bare": bare}, role=None)]
    )

    assert {key: metrics[0][1] for key, metrics in held(uri, run).items()} == {
        "grad/mean": 2.5, "grad/min": 0.5, "grad/max": 5.5, "grad/p50": samples.distribution().quantile(0.5),
        "grad/p95": samples.distribution().quantile(0.95), "bare/mean": 2.5,
    }  # fmt: skip


def test_keys_are_cleaned_distinguished_and_said_once(
    uri: str, run: RunInfo, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [
        "acc@5",
        "acc_at_5",
        "a//b",
        "a/b",
        "100%",
        "100&",
        "../up",
        "",
        "k" * 300,
        "k" * 299 + "j",
    ]
    memory = MemoryTable()

    with caplog.at_level(logging.WARNING, "otel_bridge_mlflow.keys"):
        for step in (1, 2):
            values: dict[str, Value] = {key: float(n) for n, key in enumerate(keys)}
            opened(uri, run, memory).write_rows([samples.row(step, values, role=None)])

    names = {metrics[0][1]: key for key, metrics in held(uri, run).items()}
    cut = {n: name for n, name in names.items() if len(name) > 20}
    assert {n: name for n, name in names.items() if n not in cut} == {
        0.0: "acc_at_5-8a3f2b80", 1.0: "acc_at_5", 2.0: "a/b-32e9eece", 3.0: "a/b", 4.0: "100_", 5.0: "100_-5109f43c",
        6.0: "__/up", 7.0: "_",
    }  # fmt: skip
    assert [len(name) for name in cut.values()] == [250, 250]
    assert all(len(metrics) == 2 for metrics in held(uri, run).values())
    assert len([said for said in caplog.messages if "is shown as" in said]) == 8


def test_a_legal_key_that_comes_after_a_cleaned_one_took_its_name_is_distinguished(
    uri: str, run: RunInfo
) -> None:
    writer = opened(uri, run)

    writer.write_rows([samples.row(1, {"acc@5": 0.0}, role=None)])
    writer.write_rows([samples.row(1, {"acc_at_5": 1.0}, role=None)])

    assert {key: metrics[0][1] for key, metrics in held(uri, run).items()} == {
        "acc_at_5": 0.0,
        "acc_at_5-cfa781b8": 1.0,
    }


def test_a_key_that_came_before_keeps_its_name_from_a_cleaned_one(
    uri: str, run: RunInfo
) -> None:
    seen = dataclasses.replace(run, keys={"acc_at_5": "step"})

    opened(uri, seen).write_rows(
        [samples.row(1, {"acc@5": 0.0, "acc_at_5": 1.0}, role=None)]
    )

    assert held(uri, run)["acc_at_5"] == [(1, 1.0, START_MS + 1000)]


def test_keys_of_rows_without_a_step_keep_their_names_from_cleaned_ones_that_come_after_a_restart(
    uri: str, run: RunInfo
) -> None:
    memory = MemoryTable()  # the run's keys hold those with a step alone

    for position, key in enumerate(["acc_at_5", "acc@5", "a/b", "a//b", "/a/b/"]):
        opened(uri, run, memory).write_rows(
            [stepless(key, float(position), position + 1)]
        )
    for position, key in enumerate(["acc_at_5", "acc@5", "a/b", "a//b", "/a/b/"]):
        opened(uri, run, memory).write_rows(
            [stepless(key, 10.0 + position, position + 6)]
        )

    shown = {
        name: [value for _, value, _ in metrics]
        for name, metrics in held(uri, run).items()
    }
    assert shown == {
        "trainer/acc_at_5": [0.0, 10.0],
        "trainer/acc_at_5-d401aa63": [1.0, 11.0],
        "trainer/a/b": [2.0, 12.0],
        "trainer/a/b-97778408": [3.0, 13.0],
        "trainer/a/b-2a4746df": [4.0, 14.0],
    }


def test_a_key_that_is_the_changed_name_of_another_gets_one_of_its_own(
    uri: str, run: RunInfo
) -> None:
    taken = "acc_at_5-8a3f2b80"
    writer = opened(uri, run)

    writer.write_rows(
        [samples.row(1, {"acc_at_5": 0.0, taken: 1.0, "acc@5": 2.0}, role=None)]
    )

    assert sorted(metrics[0][1] for metrics in held(uri, run).values()) == [
        0.0,
        1.0,
        2.0,
    ]


def test_a_part_of_a_distribution_never_takes_a_users_key(
    uri: str, run: RunInfo
) -> None:
    values: dict[str, Value] = {"loss/mean": 7.0, "loss": samples.distribution()}

    opened(uri, run).write_rows([samples.row(1, values, role=None)])

    found = {key: metrics[0][1] for key, metrics in held(uri, run).items()}
    assert found["loss/mean"] == 7.0
    assert sorted(found.values()).count(2.5) == 1


def test_a_key_that_waits_at_a_restart_does_not_share_the_name_of_an_earlier_part(
    uri: str, run: RunInfo
) -> None:
    memory = MemoryTable()
    distribution = samples.row(1, {"loss": samples.distribution()})
    opened(uri, run, memory).write_rows([distribution])

    waiting = samples.row(2, {"loss/mean": 77.0})
    seen = dataclasses.replace(run, keys={"trainer/loss/mean": "trainer/step"})
    opened(uri, seen, memory).write_rows([waiting])

    values = held(uri, run)
    (changed_name,) = [name for name in values if name.startswith("trainer/loss/mean-")]
    assert [value for _, value, _ in values[changed_name]] == [77.0]
    assert [step for step, _, _ in values["trainer/loss/mean"]] == [1]


def test_rows_without_a_step_count_on_per_key_after_a_restart_and_again_for_the_same_rows(
    uri: str, run: RunInfo
) -> None:
    memory = MemoryTable()
    rows = [stepless("cpu" if n % 2 else "gpu", float(n), n) for n in range(1, 9)]

    opened(uri, run, memory).write_rows(rows[:5])
    opened(uri, run, memory).write_rows(rows[2:])
    opened(uri, run, memory).write_rows(rows)

    assert {
        key: [(step, value) for step, value, _ in metrics]
        for key, metrics in held(uri, run).items()
    } == {
        "trainer/cpu": [(0, 1.0), (1, 3.0), (2, 5.0), (3, 7.0)],
        "trainer/gpu": [(0, 2.0), (1, 4.0), (2, 6.0), (3, 8.0)],
    }


def test_running_steps_forget_positions_two_calls_back() -> None:
    memory = MemoryTable()
    steps = RunningSteps(memory)

    for first in range(1, 3001, 1000):
        steps.of(
            [stepless("cpu", 0.0, position) for position in range(first, first + 1000)]
        )
    again = RunningSteps(memory).of(
        [stepless("cpu", 0.0, position) for position in range(1001, 3002)]
    )

    assert again == {position: position - 1 for position in range(1001, 3002)}
    assert len(memory.get("running_steps") or b"") < 60_000


def test_dead_letters_without_a_step_that_are_tried_again_have_steps_of_their_own() -> (
    None
):
    memory = MemoryTable()
    steps = RunningSteps(memory)
    steps.of([stepless("cpu", 0.0, position) for position in (1, 2, 3)])

    again = [steps.of([stepless("cpu", 1.0, 0)])[0] for _ in range(2)]
    after_a_restart = RunningSteps(memory).of([stepless("cpu", 2.0, 4)])

    assert (again, after_a_restart[4]) == ([3, 4], 5)


def test_steps_that_the_memory_did_not_take_are_stored_before_their_rows_are_sent() -> (
    None
):
    memory = FullTable()
    rows = [stepless("cpu", 0.0, 1)]
    steps = RunningSteps(memory)
    with pytest.raises(JournalError):
        steps.of(rows)
    memory.is_full = False

    assert steps.of(rows) == {1: 0}
    assert RunningSteps(memory).of([stepless("cpu", 0.0, 2)]) == {1: 0, 2: 1}


def test_the_good_values_of_a_bad_row_arrive_and_its_error_names_the_bad_key(
    uri: str, run: RunInfo
) -> None:
    rows = samples.placed(
        [
            samples.row(1, {"a": 1.0}),
            samples.row(2, {"a": 2.0, "bad": "x", "b": 2.0}),
            samples.row(3, {"a": 3.0}),
        ]
    )  # type: ignore[dict-item]

    with pytest.raises(PermanentError, match="'trainer/bad' is str") as raised:
        opened(uri, run).write_rows(rows)

    assert raised.value.position == 2
    assert {key: [value for _, value, _ in metrics] for key, metrics in held(uri, run).items()} == {
        "trainer/a": [1.0, 2.0], "trainer/b": [2.0],
    }  # fmt: skip


def test_a_point_that_only_the_store_refuses_is_found_by_halving(
    uri: str, run: RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(uri, run)
    rows = samples.placed(samples.rows(50))
    # MLflow's own check is the judge; one name is made illegal behind our cleaning.
    names = writer._metrics._names
    monkeypatch.setitem(names._names, "trainer/metric_07", "no?such name")

    with pytest.raises(PermanentError, match="no\\?such name") as raised:
        writer.write_rows(rows)

    assert raised.value.position == 1
    assert {key: len(metrics) for key, metrics in held(uri, run).items()} == {
        f"trainer/metric_{n:02d}": 1 for n in range(10) if n != 7
    }


def test_a_number_beyond_double_is_refused_and_named(uri: str, run: RunInfo) -> None:
    with pytest.raises(PermanentError, match="double") as raised:
        opened(uri, run).write_rows(samples.placed([samples.row(1, {"huge": 10**400})]))

    assert raised.value.position == 1


@pytest.mark.parametrize("key", ["best", "best@1"])
def test_a_text_of_the_summary_that_became_a_number_is_no_longer_shown_as_a_text(
    uri: str, run: RunInfo, key: str
) -> None:
    writer = opened(uri, run)
    assert isinstance(writer, WritesSummary)

    writer.write_summary(None, {key: "not yet", "note": "stays"})
    writer.write_summary(None, {key: 0.5})

    data = mlflow_reading.client(uri).get_run(tagged(uri, run)).data
    assert [tag for tag in data.tags if tag.startswith("summary/")] == ["summary/note"]
    assert [*data.metrics.values()] == [0.5]


def test_a_text_of_the_summary_whose_removal_got_no_answer_does_not_block_the_repeated_call(
    uri: str, run: RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(uri, run)
    assert isinstance(writer, WritesSummary)
    writer.write_summary(None, {"best": "not yet"})
    client = type(writer._connection.client)  # type: ignore[attr-defined]
    delete_tag = client.delete_tag

    def without_answer(*arguments: object) -> None:
        delete_tag(*arguments)
        raise ConnectionError("reset")

    with monkeypatch.context() as patched:
        patched.setattr(client, "delete_tag", without_answer)
        with pytest.raises(RetryableError):
            writer.write_summary(None, {"best": 0.5})
    writer.write_summary(None, {"best": 0.5})

    assert [point[1] for point in held(uri, run)["summary/best"]] == [0.5]


def test_the_summary_that_a_new_writer_is_given_again_adds_no_points(
    uri: str, run: RunInfo
) -> None:
    memory = MemoryTable()
    values = {"best@1": 0.5, "plain": 1, "worst": -math.inf, "unknown": math.nan}

    for _ in range(3):
        opened(uri, run, memory).write_summary(None, values)

    assert {name: len(points) for name, points in held(uri, run).items()} == {
        "summary/best_at_1": 1,
        "summary/plain": 1,
        "summary/worst": 1,
        "summary/unknown": 1,
    }


def test_dead_letters_that_are_tried_again_count_as_alerts_of_their_own(
    uri: str, run: RunInfo
) -> None:
    writer = opened(uri, run)
    assert isinstance(writer, WritesAlerts)

    # Tried again, they have no position.
    for number in (2, 3, 3):
        writer.write_alerts([samples.alert(number)])

    points = [point[:2] for point in held(uri, run)["alerts/warn"]]
    assert points == [(2, 1.0), (3, 2.0)]


def test_alerts_count_up_in_the_time_line_and_one_that_comes_again_changes_nothing(
    uri: str, run: RunInfo
) -> None:
    given = [
        samples.alert(2),
        samples.alert(3, "nan", "error"),
        samples.alert(5, "nan", "error"),
    ]
    alerts = samples.placed(given)
    memory = MemoryTable()

    first, second = opened(uri, run, memory), opened(uri, run, memory)
    assert isinstance(first, WritesAlerts)
    assert isinstance(second, WritesAlerts)
    first.write_alerts(alerts)
    first.write_alerts(alerts[1:])
    second.write_alerts([*alerts, *samples.placed([*given, samples.alert(9)])[3:]])

    times = [alert.time_unix_ns // 1_000_000 for alert in (*alerts, samples.alert(9))]
    assert held(uri, run) == {
        "alerts/warn": [(2, 1.0, times[0]), (9, 2.0, times[3])],
        "alerts/error": [(3, 1.0, times[1]), (5, 2.0, times[2])],
    }
