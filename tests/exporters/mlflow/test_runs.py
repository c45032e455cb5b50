from __future__ import annotations

import dataclasses
import logging
import shlex
import sqlite3
from importlib.metadata import version
from pathlib import Path

import pytest

from otel_bridge import semconv
from otel_bridge.errors import BlockedError, RetryableError
from otel_bridge.exporter import RunInfo, found_of, tracker_run_id_of
from otel_bridge.records import Status
from otel_bridge.testing import MemoryTable, samples
from otel_bridge.testing.contract import same_scalars
from otel_bridge_mlflow import connection
from support.trackers import mlflow_reading
from support.trackers.mlflow_writing import opened, tagged


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return mlflow_reading.database(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(tmp_path: Path) -> RunInfo:
    return samples.run_info(tmp_path, tmp_path.name, project="runs")


def experiment(uri: str, name: str) -> str:
    api = mlflow_reading.client(uri)
    found = api.get_experiment_by_name(name)
    return found.experiment_id if found else api.create_experiment(name)


def test_a_new_run_has_experiment_name_tags_and_is_running(
    uri: str, run: RunInfo
) -> None:
    full = dataclasses.replace(
        run, group="g1", tags=("a", "b"), notes="first try", job_type="train"
    )

    opened(uri, full)

    (held,) = mlflow_reading.runs_of(uri, run)
    ours = {
        key: value for key, value in held.data.tags.items() if key != "mlflow.runName"
    }
    assert (held.info.run_name, held.info.status) == (run.name, "RUNNING")
    assert ours == {
        "rl.run.id": run.id,
        "rl.run.group": "g1",
        "rl.run.tags": "a,b",
        "rl.run.job_type": "train",
        "mlflow.note.content": "first try",
        "otel_bridge.version": version("otel-bridge"),
    }


def test_an_id_that_was_asked_for_wins_and_gets_the_tag(uri: str, run: RunInfo) -> None:
    asked = (
        mlflow_reading.client(uri).create_run(experiment(uri, "elsewhere")).info.run_id
    )

    writer = opened(
        uri, dataclasses.replace(run, identity={semconv.MLFLOW_RUN_ID: asked})
    )
    writer.write_rows(samples.placed(samples.rows(1)))

    held = mlflow_reading.client(uri).get_run(asked)
    assert held.data.tags["rl.run.id"] == run.id
    assert len(held.data.metrics) == 10


def test_an_id_that_is_not_there_blocks(uri: str, run: RunInfo) -> None:
    with pytest.raises(BlockedError, match="MLFLOW_RUN_ID=0000") as raised:
        opened(uri, dataclasses.replace(run, identity={semconv.MLFLOW_RUN_ID: "0000"}))

    assert "unset MLFLOW_RUN_ID" in raised.value.help


def test_the_emitters_experiment_goes_before_the_project(
    uri: str, run: RunInfo
) -> None:
    opened(
        uri, dataclasses.replace(run, identity={semconv.MLFLOW_EXPERIMENT: "chosen"})
    )

    (held,) = mlflow_reading.runs_of(uri, dataclasses.replace(run, project="chosen"))
    assert held.info.run_name == run.name


def test_the_oldest_run_with_the_tag_wins(uri: str, run: RunInfo) -> None:
    api, where = mlflow_reading.client(uri), experiment(uri, run.project)
    created = [
        api.create_run(where, start_time=start, tags={"rl.run.id": run.id})
        for start in (300, 100, 200)
    ]

    opened(uri, run).end(Status.FAILED)

    statuses = {
        held.info.run_id: held.info.status for held in mlflow_reading.runs_of(uri, run)
    }
    assert statuses[created[1].info.run_id] == "FAILED"
    assert set(statuses.values()) == {"FAILED", "RUNNING"}


@pytest.mark.parametrize(
    "name",
    [
        "it's",
        'a "b"',
        'it\'s "both" \\ ways',
        "per%cent_",
        "emoji 🚀",
        "line\nbreak",
        "n" * 400,
    ],
)
def test_a_run_made_by_hand_is_found_by_its_name_the_newest_not_deleted(
    uri: str, tmp_path: Path, name: str
) -> None:
    run = samples.run_info(tmp_path, name, project="by name")
    api, where = mlflow_reading.client(uri), experiment(uri, "by name")
    shown = name if len(name) < 250 else opened_name(uri, name, tmp_path)
    decoy = name.replace("'", "x").replace('"', "x").replace("%", "xx")
    ids = [
        api.create_run(where, start_time=start, run_name=shown).info.run_id
        for start in (100, 200, 300)
    ]
    api.delete_run(ids[2])
    if decoy != name:
        api.create_run(where, start_time=900, run_name=decoy)

    writer = opened(uri, run)

    assert tagged(uri, run) == ids[1]
    hint = "--new or OTEL_BRIDGE_NEW_RUN=1 starts another"
    assert (
        found_of(writer)
        == f"MLflow's own run of this name ({ids[1]}) gets the records; {hint}"
    )


def opened_name(uri: str, name: str, tmp_path: Path) -> str:
    other = samples.run_info(tmp_path, name, project="long names")
    opened(uri, other)
    (held,) = mlflow_reading.runs_of(uri, other)
    return held.info.run_name


def test_the_address_of_a_run_in_a_database_is_that_at_the_server_which_its_view_starts(
    uri: str, run: RunInfo
) -> None:
    url = opened(uri, run).url

    (held,) = mlflow_reading.runs_of(uri, run)
    page = f"#/experiments/{held.info.experiment_id}/runs/{held.info.run_id}"
    assert (
        url
        == f"http://127.0.0.1:5000/{page}/model-metrics?workflowType=machine_learning"
    )


def test_another_run_of_otel_bridge_with_the_same_name_is_left_alone(
    uri: str, run: RunInfo
) -> None:
    opened(uri, dataclasses.replace(run, id="another"))

    opened(uri, run)

    assert len(mlflow_reading.runs_of(uri, run)) == 1


def test_a_resumed_run_is_said_in_one_line_and_runs_again(
    uri: str, run: RunInfo, caplog: pytest.LogCaptureFixture
) -> None:
    first = opened(uri, run)
    first.write_rows(samples.placed(samples.rows(1)))
    first.end(Status.FINISHED)

    with caplog.at_level(logging.INFO, "otel_bridge_mlflow"):
        second = opened(uri, run)

    run_id = tagged(uri, run)
    assert caplog.messages == [f"resuming MLflow run {run_id} ({run.name!r}) in {uri}"]
    assert (found_of(first), tracker_run_id_of(first), tracker_run_id_of(second)) == (
        "",
        run_id,
        run_id,
    )
    assert found_of(second) == (
        f"MLflow already holds this run ({run_id}), continuing it; --new or OTEL_BRIDGE_NEW_RUN=1 starts another"
    )
    assert mlflow_reading.contents(uri, run).status is None


@pytest.mark.parametrize("with_memory", [True, False])
def test_a_run_that_was_deleted_blocks_the_bridge_that_wrote_it_and_no_other(
    uri: str, run: RunInfo, with_memory: bool
) -> None:
    memory = MemoryTable()
    opened(uri, run, memory)
    run_id = tagged(uri, run)
    mlflow_reading.client(uri).delete_run(run_id)

    if with_memory:
        with pytest.raises(BlockedError) as raised:
            opened(uri, run, memory)
        assert (
            raised.value.help
            == f"MLFLOW_TRACKING_URI={uri} mlflow runs restore --run-id {run_id}"
        )
        mlflow_reading.client(uri).restore_run(run_id)
    opened(uri, run, memory if with_memory else None)

    assert (tagged(uri, run) == run_id) is with_memory


def test_the_command_that_restores_what_was_deleted_is_one_of_a_shell_where_the_folder_has_a_space(
    run: RunInfo, tmp_path: Path
) -> None:
    (tmp_path / "my runs").mkdir()
    uri = mlflow_reading.database(tmp_path / "my runs")
    memory = MemoryTable()
    opened(uri, run, memory)
    mlflow_reading.client(uri).delete_run(tagged(uri, run))

    with pytest.raises(BlockedError) as raised:
        opened(uri, run, memory)

    variable, *command = shlex.split(raised.value.help)
    assert variable == f"MLFLOW_TRACKING_URI={uri}"
    assert command[:3] == ["mlflow", "runs", "restore"]


def test_rows_into_a_deleted_run_block_and_arrive_once_it_is_restored(
    uri: str, run: RunInfo
) -> None:
    writer, rows = opened(uri, run), samples.placed(samples.rows(3))
    run_id = tagged(uri, run)
    mlflow_reading.client(uri).delete_run(run_id)

    with pytest.raises(BlockedError) as raised:
        writer.write_rows(rows)
    mlflow_reading.client(uri).restore_run(run_id)
    writer.write_rows(rows)

    assert (
        raised.value.help
        == f"MLFLOW_TRACKING_URI={uri} mlflow runs restore --run-id {run_id}"
    )
    same_scalars(mlflow_reading.contents(uri, run), rows)


def test_a_deleted_experiment_blocks_with_the_command_that_restores_it(
    uri: str, tmp_path: Path
) -> None:
    run = samples.run_info(tmp_path, project="gone")
    where = experiment(uri, "gone")
    mlflow_reading.client(uri).delete_experiment(where)

    with pytest.raises(BlockedError) as raised:
        opened(uri, run)

    assert (
        raised.value.help
        == f"MLFLOW_TRACKING_URI={uri} mlflow experiments restore -x {where}"
    )


def test_an_experiment_deleted_while_its_run_is_written_blocks_and_restored_it_brings_the_run_back(
    uri: str, run: RunInfo
) -> None:
    memory, own = MemoryTable(), dataclasses.replace(run, project=f"deleted {run.name}")
    writer, rows = opened(uri, own, memory), samples.placed(samples.rows(3))
    where = experiment(uri, own.project)
    mlflow_reading.client(uri).delete_experiment(where)

    helps = []
    for act in (lambda: writer.write_rows(rows), lambda: opened(uri, own, memory)):
        with pytest.raises(BlockedError) as raised:
            act()
        helps.append(raised.value.help)
    mlflow_reading.client(uri).restore_experiment(where)
    writer.write_rows(rows)

    assert (
        helps
        == [f"MLFLOW_TRACKING_URI={uri} mlflow experiments restore -x {where}"] * 2
    )
    same_scalars(mlflow_reading.contents(uri, own), rows)


def test_an_experiment_whose_name_is_very_long_is_cut_to_the_limit(
    uri: str, tmp_path: Path
) -> None:
    run = samples.run_info(tmp_path, project="p" * 10_000)

    opened(uri, run)
    opened(uri, run)

    names = [
        each.name
        for each in mlflow_reading.client(uri).search_experiments()
        if each.name.startswith("ppp")
    ]
    assert [len(name) for name in names] == [500]


def test_artifacts_of_the_run_go_beside_the_database_not_into_the_working_folder(
    uri: str, run: RunInfo
) -> None:
    opened(uri, run)

    (held,) = mlflow_reading.runs_of(uri, run)
    folder = Path(uri.removeprefix("sqlite:///")).parent
    assert held.info.artifact_uri.startswith((folder / "mlruns").as_uri())


def test_two_bridges_that_create_a_run_at_once_agree_on_the_older_and_leave_one(
    uri: str, run: RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    create, theirs = MlflowClient.create_run, []

    def second(self, experiment_id: str, **given):
        if not theirs:  # the other bridge is a moment ahead of us
            theirs.append(
                create(
                    self, experiment_id, start_time=100, tags={"rl.run.id": run.id}
                ).info.run_id
            )
        return create(self, experiment_id, **given)

    monkeypatch.setattr(MlflowClient, "create_run", second)
    opened(uri, run)

    assert tagged(uri, run) == theirs[0]


def test_two_bridges_that_create_an_experiment_at_once_share_it(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    run, create = (
        samples.run_info(tmp_path, project="raced"),
        MlflowClient.create_experiment,
    )

    def second(self, name: str, **given):
        create(self, name)
        return create(self, name, **given)

    monkeypatch.setattr(MlflowClient, "create_experiment", second)
    opened(uri, run)

    assert mlflow_reading.contents(uri, run).status is None
    assert len(mlflow_reading.runs_of(uri, run)) == 1


@pytest.mark.parametrize("status", list(Status))
def test_the_end_has_its_status_and_time(
    uri: str, run: RunInfo, status: Status
) -> None:
    opened(uri, run).end(status)

    (held,) = mlflow_reading.runs_of(uri, run)
    assert held.info.status == status.value.upper()
    assert held.info.end_time >= held.info.start_time


SOURCE = {
    "process.command": "train.py", "process.owner": "ada", "host.name": "gpu1", "vcs.ref.head.revision": "c0ffee",
}  # fmt: skip


def test_what_the_run_runs_is_tagged_as_mlflow_does_and_by_its_first_bridge_only(
    uri: str, run: RunInfo
) -> None:
    opened(uri, dataclasses.replace(run, identity=SOURCE))
    other = {"host.name": "gpu2", "vcs.ref.head.revision": "0ff1ce"}
    opened(uri, dataclasses.replace(run, identity=other, notes="later"))

    (held,) = mlflow_reading.runs_of(uri, run)
    ours = {
        key: value
        for key, value in held.data.tags.items()
        if key not in {"mlflow.runName", "rl.run.id"}
    }
    assert ours == {
        "mlflow.source.name": "train.py", "mlflow.source.type": "LOCAL", "mlflow.source.git.commit": "c0ffee",
        "mlflow.user": "ada", "host.name": "gpu1", "mlflow.note.content": "later",
        "otel_bridge.version": version("otel-bridge"),
    }  # fmt: skip


def test_a_note_that_a_person_wrote_stays(uri: str, run: RunInfo) -> None:
    noted = dataclasses.replace(run, notes="ours")
    opened(uri, noted)
    mlflow_reading.client(uri).set_tag(tagged(uri, run), "mlflow.note.content", "mine")

    opened(uri, noted)

    (held,) = mlflow_reading.runs_of(uri, run)
    assert held.data.tags["mlflow.note.content"] == "mine"


def test_the_roles_are_listed_as_they_appear_by_several_bridges(
    uri: str, run: RunInfo
) -> None:
    first, second = opened(uri, run), opened(uri, run)

    first.write_rows(samples.placed([samples.row(1, role="trainer")]))
    second.write_rows(
        samples.placed([samples.row(1, role="explorer"), samples.row(1, role=None)])
    )
    first.write_rollouts(
        samples.placed([samples.rollout(0, seed=run.id, role="evaluator")])
    )

    (held,) = mlflow_reading.runs_of(uri, run)
    assert held.data.tags["rl.roles"] == "evaluator,explorer,trainer"


def test_a_database_that_another_program_locks_is_tried_again_long_before_mlflows_20_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connection._BUSY == "PRAGMA busy_timeout = 5000"
    monkeypatch.setattr(connection, "_BUSY", "PRAGMA busy_timeout = 50")
    uri, run = mlflow_reading.database(tmp_path), samples.run_info(tmp_path)
    writer, rows = opened(uri, run), samples.placed(samples.rows(3))
    writer.write_rows(rows[:1])
    holder = sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")

    with pytest.raises(RetryableError, match="locked") as raised:
        writer.write_rows(rows[1:])
    holder.execute("ROLLBACK")
    holder.close()
    writer.write_rows(rows[1:])

    assert raised.value.position == 2
    same_scalars(mlflow_reading.contents(uri, run), rows)


def test_opening_the_run_again_adds_nothing_to_each_statement_of_the_database(
    uri: str, run: RunInfo
) -> None:
    engine = opened(uri, run)._connection.store.engine
    listeners = len(list(engine.dispatch.before_cursor_execute))

    opened(uri, run)

    assert len(list(engine.dispatch.before_cursor_execute)) == listeners
