"""Params of an MLflow run: cleaned, cut, changed by a resume."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from otel_bridge.errors import RetryableError
from otel_bridge.exporter import RunInfo
from otel_bridge.testing import MemoryTable, samples
from support.trackers import mlflow_reading
from support.trackers.mlflow_writing import opened, tagged


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return mlflow_reading.database(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(tmp_path: Path) -> RunInfo:
    return samples.run_info(tmp_path, tmp_path.name, project="runs")


def test_params_that_changed_after_a_resume_become_tags_and_only_changes_are_sent(
    uri: str, run: RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(
        uri, dataclasses.replace(run, configs={"trainer": {"lr": 0.1, "clip": 0.2}})
    )
    second = opened(uri, run)

    second.write_config("trainer", {"lr": 0.05, "clip": 0.2, "new": True})
    before = mlflow_reading.client(uri).get_run(tagged(uri, run)).data
    second.write_config("trainer", {"lr": 0.1, "clip": 0.2, "new": True})
    after = mlflow_reading.client(uri).get_run(tagged(uri, run)).data

    assert first is not second
    assert before.params == {
        "trainer/lr": "0.1",
        "trainer/clip": "0.2",
        "trainer/new": "True",
    }
    assert (before.tags["config/trainer/lr"], after.tags["config/trainer/lr"]) == (
        "0.05",
        "0.1",
    )
    assert after.params == before.params
    assert "config/trainer/clip" not in after.tags


def test_changed_params_of_very_long_names_have_tags_of_their_own_which_go_on_changing(
    uri: str, run: RunInfo
) -> None:
    one, other = "k" * 400 + "1", "k" * 400 + "2"
    opened(uri, run).write_config(None, {one: 1, other: 2})
    second = opened(uri, run)

    second.write_config(None, {one: 3, other: 4})
    before = mlflow_reading.client(uri).get_run(tagged(uri, run)).data.tags
    second.write_config(None, {one: 1, other: 4})
    after = mlflow_reading.client(uri).get_run(tagged(uri, run)).data.tags

    values = [
        sorted(value for tag, value in tags.items() if tag.startswith("config/"))
        for tags in (before, after)
    ]
    assert values == [["3", "4"], ["1", "4"]]


def test_params_that_become_equal_by_cleaning_keep_values_of_their_own_across_restarts_in_each_role(
    uri: str, run: RunInfo
) -> None:
    memory = MemoryTable()

    for key, value in (
        ("top_at_k", 1),
        ("top@k", 2),
        ("top//at", 3),
        ("top/at", 4),
        ("top@k", 5),
    ):
        for role in ("actor", "critic"):
            opened(uri, run, memory).write_config(role, {key: value})

    found = mlflow_reading.client(uri).get_run(tagged(uri, run)).data
    changed = {
        key: value for key, value in found.tags.items() if key.startswith("config/")
    }
    assert found.params == {
        "actor/top_at_k": "1", "actor/top_at_k-20d6e6e1": "2", "actor/top/at": "3", "actor/top/at-30aefb82": "4",
        "critic/top_at_k": "1", "critic/top_at_k-ea0ac0df": "2", "critic/top/at": "3", "critic/top/at-e203b5ff": "4",
    }  # fmt: skip
    assert changed == {
        "config/actor/top_at_k-20d6e6e1": "5",
        "config/critic/top_at_k-ea0ac0df": "5",
    }


def test_a_param_with_a_legal_key_keeps_its_name_from_one_beside_it_that_is_cleaned(
    uri: str, run: RunInfo
) -> None:
    opened(uri, run).write_config(None, {"top@k": 2, "top_at_k": 1})

    found = mlflow_reading.client(uri).get_run(tagged(uri, run)).data.params
    assert (found["top_at_k"], sorted(found.values())) == ("1", ["1", "2"])


def test_params_that_become_equal_by_flattening_keep_values_of_their_own_across_restarts(
    uri: str, run: RunInfo
) -> None:
    memory = MemoryTable()

    for _ in range(2):
        writer = opened(uri, run, memory)
        writer.write_config("x", {"a": {"b": 1}, "a/b": 2, "y/z": 3, "plain/key": 4})
        writer.write_config("x/y", {"z": 5})
        writer.write_config(None, {"x": {"a": {"b": 6}}})

    found = mlflow_reading.client(uri).get_run(tagged(uri, run)).data
    assert found.params == {
        "x/a/b": "1", "x/a/b-19fdd609": "2", "x/y/z": "3", "x/plain/key": "4", "x/y/z-052e4db2": "5",
        "x/a/b-c64d50db": "6",
    }  # fmt: skip
    assert not [tag for tag in found.tags if tag.startswith("config/")]


def test_a_param_that_another_bridge_wrote_meanwhile_becomes_a_tag(
    uri: str, run: RunInfo
) -> None:
    first, second = opened(uri, run), opened(uri, run)

    first.write_config(None, {"seed": 1, "a": 1})
    second.write_config(None, {"seed": 2, "b": 2})

    held = mlflow_reading.client(uri).get_run(tagged(uri, run)).data
    assert held.params == {"seed": "1", "a": "1", "b": "2"}
    assert held.tags["config/seed"] == "2"


def test_the_tag_for_a_param_of_another_bridge_is_sent_again_after_an_error(
    uri: str, run: RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = opened(uri, run), opened(uri, run)
    first.write_config(None, {"seed": 1})
    client = type(second._connection.client)
    log_batch = client.log_batch

    def without_tags(*arguments: object, **batch: object) -> None:
        if "tags" in batch:
            raise ConnectionError("reset")
        log_batch(*arguments, **batch)

    with monkeypatch.context() as patched:
        patched.setattr(client, "log_batch", without_tags)
        with pytest.raises(RetryableError):
            second.write_config(None, {"seed": 2})
    second.write_config(None, {"seed": 2})

    held = mlflow_reading.client(uri).get_run(tagged(uri, run)).data
    assert held.tags["config/seed"] == "2"


def test_long_values_are_cut_to_mlflows_limit_and_stay_the_same_after_a_resume(
    uri: str, run: RunInfo
) -> None:
    config = {"prompt": "x" * 20_000, "list": [1, {"a": None}], "nul": "a\0b\ud800"}

    opened(uri, run).write_config("trainer", config)
    opened(uri, run).write_config("trainer", config)

    held = mlflow_reading.client(uri).get_run(tagged(uri, run)).data
    assert held.params == {
        "trainer/prompt": "x" * 6000, "trainer/list": '[1, {"a": null}]', "trainer/nul": "a�b?",
    }  # fmt: skip
    assert not [tag for tag in held.tags if tag.startswith("config/")]
