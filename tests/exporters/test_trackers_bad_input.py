"""What one tracker takes and another does not: each shows what it can, and the rest of the row in any case."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

import otel_bridge_mlflow
import otel_bridge_trackio
from otel_bridge.exporter import RunInfo
from otel_bridge.records import Row
from otel_bridge.testing import MemoryTable, deliver, open_writer, samples
from support.trackers import mlflow_reading, trackio_store

ODD = {
    "a@b": 1.0, "a_at_b": 2.0, "x//y": 3.0, "x/y": 4.0, "it's \"quoted\"": 5.0, "emoji 🎲": 6.0,
    "k" * 10_000: 7.0, "../up": 8.0, "new\nline": 9.0, "nul\0": 10.0, "step": 11.0, "__own": 12.0, ".": 13.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return mlflow_reading.database(tmp_path_factory.mktemp("odd"))


@pytest.fixture
def run(tmp_path: Path) -> RunInfo:
    return samples.run_info(
        tmp_path,
        tmp_path.name,
        project=f"odd{''.join(filter(str.isalnum, tmp_path.name))}",
    )


def mlflow(uri: str, run: RunInfo):
    settings = otel_bridge_mlflow.exporter.read_settings(
        {"MLFLOW_TRACKING_URI": uri}, run.folder
    )
    return open_writer(otel_bridge_mlflow.exporter, run, settings, MemoryTable())


def trackio(run: RunInfo):
    settings = otel_bridge_trackio.exporter.read_settings(
        trackio_store.ENVIRONMENT, run.folder
    )
    return open_writer(otel_bridge_trackio.exporter, run, settings, MemoryTable())


def rows() -> list[Row]:
    return samples.placed([samples.row(step, ODD, role=None) for step in (1, 2)])


def test_odd_keys_arrive_in_each_tracker_with_all_their_values(
    uri: str, run: RunInfo
) -> None:
    refused = deliver(mlflow(uri, run), rows()), deliver(trackio(run), rows())

    in_mlflow = {
        scalar.key: scalar.value for scalar in mlflow_reading.contents(uri, run).scalars
    }
    in_trackio = {
        scalar.key: scalar.value for scalar in trackio_store.held(run).scalars
    }
    assert refused == ([], [])
    assert (
        sorted(in_mlflow.values())
        == sorted(in_trackio.values())
        == sorted(ODD.values())
    )
    legal = {"a_at_b": 2.0, "x/y": 4.0}
    assert (
        in_mlflow.items() >= legal.items()
    )  # a key that is legal as it is keeps its name
    assert {key: in_trackio[key] for key in ODD if key not in {"step", "__own"}} == {
        key: value for key, value in ODD.items() if key not in {"step", "__own"}
    }
    assert (in_trackio["__step"], in_trackio["____own"]) == (11.0, 12.0)


def test_a_number_beyond_a_double_costs_itself_in_mlflow_and_its_row_in_trackio(
    uri: str, run: RunInfo
) -> None:
    huge = samples.placed(
        [replace(samples.row(1), values={"trainer/huge": 10**400, "trainer/loss": 0.5})]
    )

    refused = deliver(mlflow(uri, run), huge), deliver(trackio(run), huge)

    assert refused == ([1], [1])
    assert [scalar.key for scalar in mlflow_reading.contents(uri, run).scalars] == [
        "trainer/loss"
    ]


@pytest.mark.parametrize(
    "name", ['it\'s "both"', "a/b\\c", "🎲 run", "n" * 10_000, "new\nline"]
)
def test_a_run_of_any_name_is_opened_written_and_found_again(
    uri: str, run: RunInfo, name: str
) -> None:
    odd = replace(run, name=name)
    row = samples.placed([samples.row(1)])

    for _ in range(2):
        assert deliver(mlflow(uri, odd), row) == []
        assert deliver(trackio(odd), row) == []

    (held,) = mlflow_reading.runs_of(uri, odd)
    assert held.info.run_name == name or len(held.info.run_name) <= 250
    assert len(trackio_store.held(odd).scalars) == len(row[0].values)


@pytest.mark.long
def test_a_config_of_thousands_of_entries_with_odd_values_arrives(
    uri: str, run: RunInfo
) -> None:
    config = {f"group{n % 10}": {f"key{m}": m for m in range(300)} for n in range(10)}
    odd = {
        "nan": math.nan,
        "list": [1, {"deep": None}],
        "empty": {},
        "long": "x" * 20_000,
        "a@b": 1,
    }
    odd |= {"half": "\ud800", "huge": 10**40}

    for writer in (mlflow(uri, run), trackio(run)):
        writer.write_config("trainer", {**config, **odd})
        writer.write_rows(samples.placed([samples.row(1)]))

    in_mlflow, in_trackio = (
        mlflow_reading.contents(uri, run).config,
        trackio_store.held(run).config,
    )
    assert (
        in_mlflow["trainer/group9/key299"]
        == in_trackio["trainer/group9/key299"]
        == "299"
    )
    assert len(in_mlflow) == 3_000 + len(odd) - 1  # an empty map has no entry
    assert len(in_trackio) == 3_000 + len(odd)
    assert in_mlflow["trainer/a_at_b"] == in_trackio["trainer/a@b"] == "1"
    assert len(in_mlflow["trainer/long"]) == 6_000
    assert in_mlflow["trainer/huge"] == in_trackio["trainer/huge"] == str(10**40)
    assert (
        len(trackio_store.held(run).scalars)
        == len(mlflow_reading.contents(uri, run).scalars)
        == 1
    )
