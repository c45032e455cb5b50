"""Rewards wait until nothing else does: they survive a kill, come once, and never keep a row or rollout waiting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import otel_bridge_mlflow
from otel_bridge.errors import RetryableError
from otel_bridge.exporter import HasBacklog, RunInfo
from otel_bridge.records import RolloutRecord, Status
from otel_bridge.testing import MemoryTable, deliver, samples
from otel_bridge_mlflow.traces import assessments
from otel_bridge_mlflow.traces.feedback import PendingFeedback, rewards_of
from support.trackers import mlflow_reading
from support.trackers.mlflow_writing import opened

exporter = otel_bridge_mlflow.exporter


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return mlflow_reading.database(tmp_path_factory.mktemp("rewards"))


@pytest.fixture
def run(tmp_path: Path) -> RunInfo:
    return samples.run_info(tmp_path, tmp_path.name, project="rewards")


def rollouts(run: RunInfo, count: int) -> list[RolloutRecord]:
    return samples.placed([samples.rollout(n, seed=run.id) for n in range(count)])


def shown(uri: str, run: RunInfo) -> dict[str, list[tuple[str, object]]]:
    """The assessments MLflow shows, by rollout."""
    api, (held,) = mlflow_reading.client(uri), mlflow_reading.runs_of(uri, run)
    traces = api.search_traces(locations=[held.info.experiment_id], run_id=held.info.run_id)
    return {
        trace.info.trace_id.removeprefix("tr-"): sorted((each.name, each.value) for each in trace.info.assessments)
        for trace in traces
    }


ALL = [("answer", 0.5), ("format", 0.25), ("reward", 0.75)]


def test_a_rollout_is_shown_before_its_rewards_which_come_once_the_writer_is_asked_to_catch_up(
    uri: str, run: RunInfo
) -> None:
    memory = MemoryTable()
    writer, (one, two) = opened(uri, run, memory), rollouts(run, 2)

    writer.write_rollouts([one, two])
    before = shown(uri, run)
    assert isinstance(writer, HasBacklog)
    waited = writer.backlog
    finished = [writer.process_backlog(), writer.process_backlog(), writer.process_backlog()]

    assert before == {one.id: [], two.id: []}
    assert (waited, finished, writer.backlog) == (6, [False, True, True], 0)
    assert shown(uri, run) == {one.id: ALL, two.id: ALL}
    assert list(memory.items("feedback/")) == []


def test_rewards_that_waited_when_the_bridge_was_killed_are_written_by_the_next_one(uri: str, run: RunInfo) -> None:
    memory, (one, two) = MemoryTable(), rollouts(run, 2)
    first = opened(uri, run, memory)
    first.write_rollouts([one])
    first.write_rollouts([two])
    left = memory.snapshot()
    first.process_backlog()

    second = opened(uri, run, left)
    second.write_rollouts([two])
    deliver(second, [])

    assert shown(uri, run) == {one.id: ALL, two.id: ALL}


def test_the_end_of_the_run_waits_for_the_rewards(uri: str, run: RunInfo) -> None:
    writer, (one,) = opened(uri, run, MemoryTable()), rollouts(run, 1)
    writer.write_rollouts([one])

    writer.end(Status.FINISHED)

    assert shown(uri, run) == {one.id: ALL}


@pytest.mark.parametrize("killed", [False, True])
def test_labels_and_explanations_that_came_before_the_rollout_are_shown_as_those_that_come_after_it(
    uri: str, run: RunInfo, killed: bool
) -> None:
    said = {
        "reward": [None, "since B"],
        "format": ["tidy", None],
        "advantage": [None, "since C"],
        "label": ["good", "since A"],
    }
    (plain,) = rollouts(run, 1)
    one = replace(plain, remarks=said, advantage=2.0)
    memory = MemoryTable()
    writer = opened(uri, run, memory)
    writer.write_rollouts([one])
    if killed:
        writer = opened(uri, run, memory.snapshot())
    deliver(writer, [])

    api, (held,) = mlflow_reading.client(uri), mlflow_reading.runs_of(uri, run)
    (trace,) = api.search_traces(locations=[held.info.experiment_id], run_id=held.info.run_id)
    assert sorted(
        (each.name, each.value, each.rationale, (each.metadata or {}).get("label")) for each in trace.info.assessments
    ) == [
        ("advantage", 2.0, "since C", None),
        ("answer", 0.5, None, None),
        ("format", 0.25, None, "tidy"),
        ("label", "good", "since A", None),
        ("reward", 0.75, "since B", None),
    ]


def test_a_later_reward_goes_before_the_one_that_waits(uri: str, run: RunInfo) -> None:
    writer, (one,) = opened(uri, run, MemoryTable()), rollouts(run, 1)
    writer.write_rollouts([one])

    writer.write_evaluations([samples.evaluation(one, 0.125, name="reward")])
    deliver(writer, [])

    assert shown(uri, run) == {one.id: [("answer", 0.5), ("format", 0.25), ("reward", 0.125)]}


def test_rollouts_before_a_failing_one_get_their_rewards_too(
    uri: str, run: RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, (one, two) = opened(uri, run, MemoryTable()), rollouts(run, 2)

    def fails_at_the_second(given: list[RolloutRecord]) -> None:
        write([each for each in given if each is one])
        if two in given:
            raise RetryableError("down", position=two.position)

    write = writer._traces.write
    monkeypatch.setattr(writer._traces, "write", fails_at_the_second)
    with pytest.raises(RetryableError):
        writer.write_rollouts([one, two])
    monkeypatch.undo()
    deliver(writer, [two])

    assert shown(uri, run) == {one.id: ALL, two.id: ALL}


def test_the_rewards_of_a_deleted_trace_cost_no_others(uri: str, run: RunInfo) -> None:
    writer, (one, two) = opened(uri, run, MemoryTable()), rollouts(run, 2)
    writer.write_rollouts([one, two])
    (held,) = mlflow_reading.runs_of(uri, run)
    mlflow_reading.client(uri).delete_traces(held.info.experiment_id, trace_ids=[f"tr-{one.id}"])

    deliver(writer, [])

    assert shown(uri, run) == {two.id: ALL}


def test_beyond_a_limit_rollouts_wait_for_their_rewards(
    uri: str, run: RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assessments, "_MOST_WAITING", 4)
    memory = MemoryTable()
    writer, many = opened(uri, run, memory), rollouts(run, 4)

    writer.write_rollouts(many)

    assert sum(len(values) for values in shown(uri, run).values()) == 8
    assert len(PendingFeedback(memory)) == 4


def test_what_waits_is_remembered_by_batch_and_forgotten_when_done(run: RunInfo) -> None:
    memory = MemoryTable()
    waiting, (one, two) = PendingFeedback(memory), rollouts(run, 2)
    waiting.add(list(rewards_of(one)))
    waiting.add(list(rewards_of(two)))

    waiting.forget(waiting.first(4))
    again = PendingFeedback(memory)
    again.add(list(rewards_of(one))[:1])

    assert [(value.rollout_id, value.name) for value in again.first(9)] == [
        (two.id, "format"), (two.id, "answer"), (one.id, "reward"),
    ]  # fmt: skip
    assert [key for key, _ in memory.items()] == ["feedback/000000000002", "feedback/000000000003"]


def test_every_part_of_a_reward_has_an_assessment_of_its_own_which_a_later_value_of_its_name_replaces(
    uri: str, run: RunInfo
) -> None:
    long = "x" * 250
    parts = {
        "reward": 1.0, "rewards.reward": 2.0, "": 3.0, "rewards.": 4.0, f"{long}a": 5.0, f"{long}b": 6.0, long: 7.0,
        "nul\0": 8.0, "nul�": 9.0, "rewards.format": 10.0,
    }  # fmt: skip
    writer = opened(uri, run, MemoryTable())
    (one,) = samples.placed([samples.rollout(seed=run.id, reward=0.5, rewards=parts)])

    writer.write_rollouts([one])
    deliver(writer, [])
    before = shown(uri, run)[one.id]
    late = ((f"{long}a", 50.0), ("rewards.reward", 20.0), ("reward", 0.25), ("nul\0", 80.0))
    writer.write_evaluations([samples.evaluation(one, value, name=name) for name, value in late])

    names = {
        "reward": 0.5, "rewards.reward": 1.0, "rewards.rewards.reward": 2.0, "rewards.": 3.0, "rewards.rewards.": 4.0,
        f"{long[:-9]}-a545922c": 5.0, f"{long[:-9]}-ca534b19": 6.0, long: 7.0, "nul�-5bf0a40d": 8.0, "nul�": 9.0,
        "rewards.format": 10.0,
    }  # fmt: skip
    assert dict(before) == names
    changed = {f"{long[:-9]}-a545922c": 50.0, "rewards.rewards.reward": 20.0, "reward": 0.25, "nul�-5bf0a40d": 80.0}
    assert dict(shown(uri, run)[one.id]) == {**names, **changed}
