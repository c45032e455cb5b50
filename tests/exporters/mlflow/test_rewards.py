"""Rewards come right behind their rollouts, once, whatever is killed or redelivered."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import otel_bridge_mlflow
from otel_bridge.errors import PermanentError
from otel_bridge.exporter import RunInfo
from otel_bridge.records import RolloutRecord
from otel_bridge.testing import samples
from otel_bridge_mlflow.traces import database
from support.trackers import mlflow_reading
from support.trackers.mlflow_writing import opened

exporter = otel_bridge_mlflow.exporter
ALL = [("answer", 0.5), ("format", 0.25), ("reward", 0.75)]


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
    traces = api.search_traces(
        locations=[held.info.experiment_id], run_id=held.info.run_id
    )
    return {
        trace.info.trace_id.removeprefix("tr-"): sorted(
            (each.name, each.value) for each in trace.info.assessments
        )
        for trace in traces
    }


def rows_of_rewards(uri: str, rollout: RolloutRecord) -> int:
    """The rows that a rollout has in MLflow's table of assessments, whether or not MLflow shows its trace."""
    import sqlite3

    with sqlite3.connect(uri.removeprefix("sqlite:///")) as sql:
        counted = sql.execute(
            "SELECT count(*) FROM assessments WHERE trace_id = ?", (f"tr-{rollout.id}",)
        )
        return int(counted.fetchone()[0])


def kill_in_a_child(
    uri: str, run: RunInfo, records: Sequence[RolloutRecord], statement: str
) -> int:
    """Write *records* in a forked child that is killed before the first *statement*; return its wait status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        from sqlalchemy import event
        from sqlalchemy.engine import Engine

        writer = opened(uri, run)
        event.listen(
            Engine,
            "before_cursor_execute",
            lambda *call: statement in call[2] and os.kill(os.getpid(), 9),
        )
        writer.write_rollouts(records)
    finally:
        os._exit(1)


def test_a_rollout_is_shown_with_its_rewards_at_once(uri: str, run: RunInfo) -> None:
    one, two = rollouts(run, 2)

    opened(uri, run).write_rollouts([one, two])

    assert shown(uri, run) == {one.id: ALL, two.id: ALL}


@pytest.mark.parametrize(
    "statement", ["INSERT INTO assessments", "INSERT INTO entity_associations"]
)
def test_a_bridge_killed_while_it_writes_rewards_is_followed_by_one_that_writes_each_once(
    uri: str, run: RunInfo, statement: str
) -> None:
    one, two = rollouts(run, 2)
    opened(uri, run)

    killed = kill_in_a_child(uri, run, [one, two], statement)
    left = rows_of_rewards(uri, one)
    opened(uri, run).write_rollouts([one, two])

    assert (killed, left) == (9, 0 if statement == "INSERT INTO assessments" else 3)
    assert shown(uri, run) == {one.id: ALL, two.id: ALL}
    assert (rows_of_rewards(uri, one), rows_of_rewards(uri, two)) == (3, 3)


def test_a_redelivered_rollout_does_not_take_back_a_later_reward(
    uri: str, run: RunInfo
) -> None:
    writer, (one,) = opened(uri, run), rollouts(run, 1)
    writer.write_rollouts([one])

    writer.write_evaluations([samples.evaluation(one, 0.125, name="reward")])
    writer.write_rollouts([one])

    assert shown(uri, run) == {
        one.id: [("answer", 0.5), ("format", 0.25), ("reward", 0.125)]
    }


def test_later_values_of_many_rollouts_are_one_transaction_and_the_last_of_a_name_is_shown(
    uri: str, run: RunInfo
) -> None:
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    writer, records = opened(uri, run), rollouts(run, 3)
    writer.write_rollouts(records)
    first = [samples.evaluation(one, 1.5, name="late") for one in records]
    commits: list[object] = []
    listener = commits.append
    event.listen(Engine, "commit", listener)
    try:
        writer.write_evaluations(samples.placed(first))
    finally:
        event.remove(Engine, "commit", listener)

    again = [
        samples.evaluation(records[0], 2.5, name="late"),
        samples.evaluation(records[1], 0.5, name="other"),
        samples.evaluation(records[1], 3.5, name="other"),
    ]
    writer.write_evaluations(samples.placed([*again, *first[2:]]))

    assert len(commits) == 1
    assert shown(uri, run) == {
        records[0].id: sorted([*ALL, ("late", 2.5)]),
        records[1].id: sorted([*ALL, ("late", 1.5), ("other", 3.5)]),
        records[2].id: sorted([*ALL, ("late", 1.5)]),
    }


def test_a_later_value_of_a_missing_rollout_is_refused_by_its_place_and_those_before_it_are_stored(
    uri: str, run: RunInfo
) -> None:
    writer, (one, missing) = opened(uri, run), rollouts(run, 2)
    writer.write_rollouts([one])
    values = samples.placed(
        [samples.evaluation(each, 1.5, name="late") for each in (one, missing)]
    )

    with pytest.raises(PermanentError, match="late of rollout") as refused:
        writer.write_evaluations(values)

    assert refused.value.position == values[1].position
    assert shown(uri, run) == {one.id: sorted([*ALL, ("late", 1.5)])}


@pytest.mark.parametrize(
    ("name", "value"), [("_SESSIONS", "Sessions"), ("_ROWS", "mlflow.no_rows")]
)
def test_an_mlflow_with_other_sessions_or_rows_gets_each_reward_by_a_call(
    uri: str, run: RunInfo, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setattr(database, name, value)
    writer, (one, two) = opened(uri, run), rollouts(run, 2)

    writer.write_rollouts([one])
    writer.write_rollouts([one, two])

    assert shown(uri, run) == {one.id: ALL, two.id: ALL}


RENAMED = [
    ("SqlAssessments", "from_mlflow_entity"),
    ("SqlAssessments", "assessment_id"),
    ("SqlAssessments", "trace_id"),
    ("SqlTraceInfo", "request_id"),
    ("SqlTraceInfo", "experiment_id"),
    ("SqlTraceInfo", "timestamp_ms"),
]


@pytest.mark.parametrize(("table", "column"), RENAMED)
def test_an_mlflow_that_renamed_a_column_gets_each_reward_by_a_call(
    uri: str, run: RunInfo, monkeypatch: pytest.MonkeyPatch, table: str, column: str
) -> None:
    from mlflow.store.tracking.dbmodels import models

    real = getattr(models, table)
    names = {
        name: getattr(real, name)
        for _, name in RENAMED
        if hasattr(real, name) and name != column
    }
    tables = {
        "SqlAssessments": models.SqlAssessments,
        "SqlTraceInfo": models.SqlTraceInfo,
    }
    renamed = SimpleNamespace(**{**tables, table: SimpleNamespace(**names)})
    monkeypatch.setitem(sys.modules, "renamed_models", renamed)  # type: ignore[arg-type]
    monkeypatch.setattr(database, "_ROWS", "renamed_models")
    writer, (rollout,) = opened(uri, run), rollouts(run, 1)

    writer.write_rollouts([rollout])

    assert shown(uri, run) == {rollout.id: ALL}


def test_labels_and_explanations_that_came_before_the_rollout_are_shown_as_those_that_come_after_it(
    uri: str, run: RunInfo
) -> None:
    said = {
        "reward": [None, "since B"],
        "format": ["tidy", None],
        "advantage": [None, "since C"],
        "label": ["good", "since A"],
    }
    (plain,) = rollouts(run, 1)
    one = replace(plain, remarks=said, advantage=2.0)
    opened(uri, run).write_rollouts([one])

    api, (held,) = mlflow_reading.client(uri), mlflow_reading.runs_of(uri, run)
    (trace,) = api.search_traces(
        locations=[held.info.experiment_id], run_id=held.info.run_id
    )
    assert sorted(
        (each.name, each.value, each.rationale, (each.metadata or {}).get("label"))
        for each in trace.info.assessments
    ) == [
        ("advantage", 2.0, "since C", None),
        ("answer", 0.5, None, None),
        ("format", 0.25, None, "tidy"),
        ("label", "good", "since A", None),
        ("reward", 0.75, "since B", None),
    ]


def test_every_part_of_a_reward_has_an_assessment_of_its_own_which_a_later_value_of_its_name_replaces(
    uri: str, run: RunInfo
) -> None:
    long = "x" * 250
    parts = {
        "reward": 1.0, "rewards.reward": 2.0, "": 3.0, "rewards.": 4.0, f"{long}a": 5.0, f"{long}b": 6.0, long: 7.0,
        "nul\0": 8.0, "nul�": 9.0, "rewards.format": 10.0,
    }  # fmt: skip
    writer = opened(uri, run)
    (one,) = samples.placed([samples.rollout(seed=run.id, reward=0.5, rewards=parts)])

    writer.write_rollouts([one])
    before = shown(uri, run)[one.id]
    late = (
        (f"{long}a", 50.0),
        ("rewards.reward", 20.0),
        ("reward", 0.25),
        ("nul\0", 80.0),
    )
    writer.write_evaluations(
        [samples.evaluation(one, value, name=name) for name, value in late]
    )

    names = {
        "reward": 0.5, "rewards.reward": 1.0, "rewards.rewards.reward": 2.0, "rewards.": 3.0, "rewards.rewards.": 4.0,
        f"{long[:-9]}-a545922c": 5.0, f"{long[:-9]}-ca534b19": 6.0, long: 7.0, "nul�-5bf0a40d": 8.0, "nul�": 9.0,
        "rewards.format": 10.0,
    }  # fmt: skip
    assert dict(before) == names
    changed = {
        f"{long[:-9]}-a545922c": 50.0,
        "rewards.rewards.reward": 20.0,
        "reward": 0.25,
        "nul�-5bf0a40d": 80.0,
    }
    assert dict(shown(uri, run)[one.id]) == {**names, **changed}
