from __future__ import annotations

import fcntl
import math
import os
import sqlite3
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from otel_bridge.capabilities import accepts
from otel_bridge.errors import BlockedError, PermanentError, RetryableError
from otel_bridge.exporter import (
    RunInfo,
    RunWriter,
    WritesPlainTraces,
    found_of,
    tracker_run_id_of,
)
from otel_bridge.records import (
    Distribution,
    Evaluation,
    PlainTrace,
    RolloutRecord,
    Row,
    Span,
    Status,
)
from otel_bridge.testing import MemoryTable
from otel_bridge_trackio import exporter
from otel_bridge_trackio.payload import histogram, rollout_trace, row_metrics, timestamp
from support.trackers import trackio_store
from support.trackers.trackio_store import DIRECTORY, ENVIRONMENT, spans_of

NOW = 1_700_000_000_123_456_789


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> RunInfo:
    project = "".join(c for c in request.node.name if c.isalnum())[:60]
    return RunInfo(id="9f2c000000000001", project=project, name="ppo", folder=tmp_path)


def opened(run: RunInfo, memory: MemoryTable | None = None) -> RunWriter:
    settings = exporter.read_settings(ENVIRONMENT, Path.cwd())
    return exporter.open(run, settings, memory or MemoryTable())


def loss(number: int, value: float = 0.5, **changes: object) -> Row:
    row = Row(
        id=f"m:a:{number}", role="trainer", step=number, axis="trainer/step", time_unix_ns=NOW + number * 1_000_000_000,
        values={"trainer/loss": value}, steps={"trainer/step": number, "explorer/step": 7}, position=number,
    )  # fmt: skip
    return replace(row, **changes)


def logs(run: RunInfo) -> list[dict[str, object]]:
    return trackio_store.storage().SQLiteStorage.get_logs(
        run.project, run.name, run_id=run.id
    )


def traces(run: RunInfo) -> list[dict[str, object]]:
    return trackio_store.storage().SQLiteStorage.get_traces(run.project, run_id=run.id)


def config(run: RunInfo) -> dict[str, object] | None:
    return trackio_store.storage().SQLiteStorage.get_run_config(
        run.project, run.name, run_id=run.id
    )


def test_a_database_that_cannot_be_read_back_is_an_error_of_the_exporter(
    run: RunInfo,
) -> None:
    writer = opened(run)
    writer.write_rows([loss(1)])
    database = trackio_store.storage().SQLiteStorage.get_project_db_path(run.project)
    database.write_bytes(b"another program's file " * 1_000)

    assert exporter.read_back is not None
    with pytest.raises(BlockedError, match="Trackio's store"):
        exporter.read_back(run, exporter.read_settings(ENVIRONMENT, Path.cwd()))


def test_rows_keep_step_and_event_time_and_no_axis_beside_trackios_own(
    run: RunInfo,
) -> None:
    writer = opened(run)

    writer.write_rows([loss(1), loss(2, math.nan), loss(3, -math.inf)])

    rows = logs(run)
    assert [(row["step"], row["timestamp"]) for row in rows] == [
        (step, timestamp(NOW + step * 1_000_000_000)) for step in (1, 2, 3)
    ]
    assert {key for row in rows for key in row} == {"step", "timestamp", "trainer/loss"}
    assert rows[0]["trainer/loss"] == 0.5
    assert math.isnan(rows[1]["trainer/loss"])
    assert rows[2]["trainer/loss"] == -math.inf


def test_a_redelivery_changes_nothing(run: RunInfo) -> None:
    writer = opened(run)
    writer.write_rows([loss(1), loss(2)])
    before = logs(run)

    opened(run).write_rows([loss(1, 99.0), loss(2, 99.0), loss(3)])

    assert logs(run)[:2] == before
    assert [row["step"] for row in logs(run)] == [1, 2, 3]


def test_a_rollout_is_a_trace_with_its_own_id_messages_metadata_and_spans(
    run: RunInfo,
) -> None:
    span = Span(
        id="00f067aa0ba902b7", parent_id=None, name="chat policy", kind="generation", start_unix_ns=NOW,
        end_unix_ns=NOW + 2_000_000, input=[{"role": "user", "content": "2+2?"}], output="4", model="policy",
        input_tokens=5, output_tokens=1,
    )  # fmt: skip
    rollout = RolloutRecord(
        id="4bf92f3577b34da6a3ce929d0e0e4736", role="explorer", key="explorer/rollouts", step=4, axis="explorer/step",
        start_unix_ns=NOW, end_unix_ns=NOW + 5_000_000, spans=[span],
        messages=[{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}],
        split="train", group="p1", sample=0, reward=1.0, rewards={"format": 0.2}, policy_version=3,
        metadata={"reward": "mine", "topic": "sums"}, position=9,
    )  # fmt: skip

    opened(run).write_rollouts([rollout])
    opened(run).write_rollouts([rollout])

    (trace,) = traces(run)
    own_id = accepts(
        trackio_store.storage().SQLiteStorage, "get_traces", "step"
    )  # from Trackio 0.26 on
    assert trace["id"] == f"{run.id}:{rollout.id if own_id else 4}:explorer/rollouts:0"
    assert trace["step"] == 4
    assert trace["messages"] == list(rollout.messages)
    metadata = {
        key: value for key, value in trace["metadata"].items() if key != "spans"
    }  # text, below Trackio 0.37
    assert metadata == {
        "status": "explorer · reward 1",
        "step": 4, "split": "train", "group": "p1", "sample": 0, "reward": 1.0, "rewards": {"format": 0.2},
        "policy_version": 3, "staleness": 1, "role": "explorer", "trace_id": rollout.id,
        "metadata.reward": "mine", "topic": "sums",
    }  # fmt: skip
    assert spans_of(trace)[0]["usage"] == {"input_tokens": 5, "output_tokens": 1}
    assert spans_of(trace)[0]["duration_ms"] == 2.0


def test_an_evaluation_is_a_record_that_names_its_rollout(run: RunInfo) -> None:
    late = Evaluation(
        id="l:a:1", rollout_id="4bf92f3577b34da6a3ce929d0e0e4736", rollout_key="explorer/rollouts", name="reward",
        value=0.5, label=None, explanation="the judge said so", role="judge", step=4, axis="judge/step",
        time_unix_ns=NOW, position=1,
    )  # fmt: skip

    opened(run).write_evaluations([late])

    (trace,) = traces(run)
    assert trace["key"] == "explorer/rollouts/late"
    assert trace["messages"] == [
        {
            "role": "user",
            "content": "reward = 0.5 for rollout 4bf92f3577b34da6a3ce929d0e0e4736: the judge said so",
        }
    ]


def test_an_evaluation_of_a_stored_rollout_is_in_the_metadata_of_its_trace_however_often_it_comes(
    run: RunInfo,
) -> None:
    rollout = RolloutRecord(
        id="4bf92f3577b34da6a3ce929d0e0e4736", role="explorer", key="explorer/rollouts", step=4, axis="explorer/step",
        start_unix_ns=NOW, end_unix_ns=NOW, messages=[{"role": "user", "content": "2+2?"}], spans=[],
        rewards={"format": 0.2}, metadata={"late_values": "mine"}, position=1,
    )  # fmt: skip

    def late(
        position: int, name: str, value: float | None, label: str | None = None
    ) -> Evaluation:
        return Evaluation(
            id=f"l:{position}", rollout_id=rollout.id, rollout_key=rollout.key, name=name, value=value, label=label,
            explanation=None, role="judge", step=9, axis="judge/step", time_unix_ns=NOW, position=position,
        )  # fmt: skip

    values = [
        late(2, "reward", 0.5),
        late(3, "trained_step", 9.0, "8,9"),
        late(4, "verdict", None, "Good"),
        late(5, "perplexity", float("inf")),
    ]
    opened(run).write_rollouts([rollout])
    opened(run).write_evaluations(values)
    opened(run).write_evaluations(values[1:])
    opened(run).write_rollouts([rollout])

    (trace,) = traces(run)
    metadata = {
        key: value for key, value in trace["metadata"].items() if key != "spans"
    }
    assert metadata == {
        "status": "explorer · reward 0.5", "step": 4, "reward": 0.5, "role": "explorer", "trace_id": rollout.id,
        "rewards": {"format": 0.2, "trained_step": 9.0, "perplexity": "Infinity"},
        "trained_step.label": "8,9", "verdict.label": "Good", "metadata.late_values": "mine",
        "late_values": ["perplexity", "reward", "trained_step", "verdict"],
    }  # fmt: skip
    store = trackio_store.storage().SQLiteStorage
    assert len(store.get_traces(run.project, run_id=run.id, search="verdict good")) == 1


def test_spans_that_arrive_after_their_rollout_are_a_trace_that_names_it(
    run: RunInfo,
) -> None:
    span = Span(
        "00000000000000aa",
        "00000000000000ab",
        "llm_request",
        "span",
        NOW,
        NOW + 1_000_000,
    )
    late = PlainTrace(
        "ab" * 16,
        "explorer",
        "llm_request",
        NOW,
        NOW + 1_000_000,
        [span],
        "explorer/rollouts",
        4,
        1,
    )
    other = PlainTrace("cd" * 16, "server", "GET /health", NOW, NOW, [span], position=2)
    writer = opened(run)

    assert isinstance(writer, WritesPlainTraces)
    writer.write_traces([late, other])
    writer.write_traces([late])

    [trace] = traces(run)
    assert (trace["key"], trace["step"]) == ("explorer/rollouts/late", 4)
    assert trace["metadata"]["rollout_id"] == "ab" * 16
    assert [span["name"] for span in spans_of(trace)] == ["llm_request"]


def test_a_config_waits_for_the_first_record_and_a_later_one_adds_no_row(
    run: RunInfo,
) -> None:
    memory = MemoryTable()
    writer = opened(run, memory)
    writer.write_config("trainer", {"lr": 1e-6, "optim": {"name": "adam"}})
    assert config(run) is None

    writer.write_rows([loss(1)])
    restarted = opened(run, memory)
    restarted.write_config("trainer", {"lr": 2e-6})
    restarted.write_config(None, {"seed": 7})

    stored = config(run)
    assert stored is not None
    assert stored == {
        "seed": 7, "trainer/lr": 2e-6, "trainer/optim/name": "adam",
        "_Group": None, "_Created": timestamp(loss(1).time_unix_ns), "_Username": None,
    }  # fmt: skip
    assert len(logs(run)) == 1


def test_a_config_after_a_user_deleted_the_run_begins_it_at_its_own_time(
    run: RunInfo,
) -> None:
    writer = opened(run)
    writer.write_rows([loss(1)])
    trackio_store.storage().SQLiteStorage.delete_run(run.project, run.name)

    writer.write_config("trainer", {"lr": 1})
    writer.write_rows([loss(2)])

    rows = [(row["step"], row["timestamp"]) for row in logs(run)]
    assert rows == [
        (0, timestamp(NOW + 1_000_000_000)), (2, timestamp(NOW + 2_000_000_000)),
    ]  # fmt: skip


def test_entries_that_become_equal_by_flattening_keep_values_of_their_own_across_restarts(
    run: RunInfo,
) -> None:
    memory = MemoryTable()
    for step in (1, 2):
        writer = opened(run, memory)
        writer.write_config("x", {"a": {"b": 1}, "a/b": 2, "y/z": 3, "plain/key": 4})
        writer.write_config("x/y", {"z": 5})
        writer.write_config(None, {"x": {"a": {"b": 6}}, "_lr": 7, "config_lr": 8})
        writer.write_rows([loss(step)])

    stored = config(run)
    assert stored is not None
    assert {key: value for key, value in stored.items() if not key.startswith("_")} == {
        "x/a/b": 6, "x/a/b-4576f820": 1, "x/a/b-f822423c": 2, "x/y/z": 3, "x/plain/key": 4, "x/y/z-80db9835": 5,
        "config_lr": 7, "config_lr-53f4a623": 8,
    }  # fmt: skip


def test_what_another_bridge_said_of_its_roles_stays_beside_ours(run: RunInfo) -> None:
    other = opened(replace(run, group="g1"))
    other.write_config("explorer", {"envs": 8, "sampler": {"top_p": 0.9}})
    other.write_rows([loss(1)])
    writer = opened(run)
    writer.write_config("trainer", {"lr": 1})
    writer.write_config("explorer", {"sampler": "greedy"})

    writer.write_rows([loss(2)])

    assert config(run) == {
        "trainer/lr": 1, "explorer/envs": 8, "explorer/sampler": "greedy",
        "_Group": "g1", "_Created": timestamp(loss(1).time_unix_ns), "_Username": None,
    }  # fmt: skip


@pytest.mark.parametrize("at", ["a later record", "the end"])
def test_a_config_that_another_bridge_replaced_is_stored_again(
    run: RunInfo, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    now_s = [0.0]
    ours, other = cast("Any", opened(run)), cast("Any", opened(run))
    monkeypatch.setattr("otel_bridge_trackio.config.monotonic", lambda: now_s[0])
    monkeypatch.setattr(
        other._config, "_stored", dict
    )  # it read the config before ours was there
    ours.write_config("trainer", {"lr": 1})
    ours.write_rows([loss(1)])
    other.write_config("explorer", {"envs": 8})
    other.write_rows([loss(2)])
    replaced = config(run)

    if at == "the end":
        ours.end(Status.FINISHED)
    else:
        now_s[0] = 3.0
        ours.write_rows([loss(3)])

    stored = config(run)
    assert (replaced or {}).get("trainer/lr") is None
    assert {key: value for key, value in (stored or {}).items() if "/" in key} == {
        "trainer/lr": 1,
        "explorer/envs": 8,
    }


def test_a_config_is_looked_for_again_after_the_store_could_not_be_read(
    run: RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    ours, other = cast("Any", opened(run)), cast("Any", opened(run))
    monkeypatch.setattr("otel_bridge_trackio.config.monotonic", lambda: now_s[0])
    monkeypatch.setattr(other._config, "_stored", dict)
    ours.write_config("trainer", {"lr": 1})
    ours.write_rows([loss(1)])
    other.write_config("explorer", {"envs": 8})
    other.write_rows([loss(2)])
    now_s[0] = 3.0

    def locked() -> None:
        raise RetryableError("locked")

    with monkeypatch.context() as patched:
        patched.setattr(ours._config, "_stored", locked)
        with pytest.raises(RetryableError):
            ours.write_rows([loss(3)])
    ours.write_rows([loss(3)])

    assert (config(run) or {}).get("trainer/lr") == 1


def test_rows_without_a_step_get_the_running_count_of_their_keys_also_after_a_restart(
    run: RunInfo,
) -> None:
    memory = MemoryTable()
    timed = [
        loss(n, step=None, axis=None, steps={}, values={"gpu": float(n)})
        for n in (1, 2, 3)
    ]
    opened(run, memory).write_rows(timed[:2])

    opened(run, memory).write_rows(timed[2:])

    assert [(row["step"], row["gpu"]) for row in logs(run)] == [
        (0, 1.0),
        (1, 2.0),
        (2, 3.0),
    ]


def test_one_bad_record_is_named_and_those_before_it_are_stored(run: RunInfo) -> None:
    writer = opened(run)

    with pytest.raises(PermanentError) as caught:
        writer.write_rows([loss(1), loss(2, step=2**63), loss(3)])

    assert caught.value.position == 2
    assert [row["step"] for row in logs(run)] == [1]
    writer.write_rows([loss(3)])
    assert [row["step"] for row in logs(run)] == [1, 3]


def test_a_locked_store_is_retried_and_then_written(
    run: RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_storage = trackio_store.storage()
    writer = opened(run)
    writer.write_rows([loss(1)])
    monkeypatch.setattr(sqlite_storage.sqlite3, "connect", _impatient(sqlite3.connect))
    holder = sqlite3.connect(DIRECTORY / f"{run.project}.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")

    with pytest.raises(RetryableError, match="locked"):
        writer.write_rows([loss(2)])
    holder.execute("ROLLBACK")
    holder.close()
    writer.write_rows([loss(2)])

    assert [row["step"] for row in logs(run)] == [1, 2]


def test_a_store_that_another_process_holds_is_retried_and_then_written(
    run: RunInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_storage = trackio_store.storage()
    writer = opened(run)
    writer.write_rows([loss(1)])
    (lock,) = [
        file for file in DIRECTORY.glob(f"{run.project}*") if file.suffix == ".lock"
    ]
    monkeypatch.setattr(
        sqlite_storage.time, "sleep", lambda _: None
    )  # it tries for ten seconds
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RetryableError, match="lock after 10 seconds") as raised:
            writer.write_rows([loss(2), loss(3)])
    writer.write_rows([loss(2), loss(3)])

    assert raised.value.position == 2
    assert [row["step"] for row in logs(run)] == [1, 2, 3]


def _impatient(connect: object) -> object:
    def call(database: str, **options: object) -> sqlite3.Connection:
        return connect(database, **{**options, "timeout": 0.05})

    return call


def test_a_project_name_that_trackio_refuses_blocks_with_what_to_do(
    run: RunInfo,
) -> None:
    opened(run)
    if not hasattr(trackio_store.storage().SQLiteStorage, "validate_project_name"):
        pytest.skip("Trackio below 0.30 refuses no name")
    with pytest.raises(BlockedError, match="traces") as caught:
        opened(replace(run, project="my_traces"))

    assert caught.value.help == "set TRACKIO_PROJECT to another name"


def test_a_project_name_too_long_for_a_file_blocks_with_what_to_do(
    run: RunInfo,
) -> None:
    with pytest.raises(BlockedError) as caught:
        opened(replace(run, project="x" * 300)).write_rows([loss(1)])

    assert caught.value.help == "set TRACKIO_PROJECT to another name"


def test_the_emitters_trackio_project_goes_before_the_runs(run: RunInfo) -> None:
    other = replace(run, identity={"rl.trackio.project": f"{run.project}-other"})

    opened(other).write_rows([loss(1)])

    assert logs(run) == []
    assert len(logs(replace(run, project=f"{run.project}-other"))) == 1


def test_a_second_folder_in_one_process_is_refused(
    run: RunInfo, tmp_path: Path
) -> None:
    opened(run)
    settings = exporter.read_settings({"TRACKIO_DIR": str(tmp_path)}, Path.cwd())

    with pytest.raises(BlockedError, match="can know but one"):
        exporter.open(run, settings, MemoryTable())

    os.environ["TRACKIO_DIR"] = str(DIRECTORY)


def test_a_histogram_is_trimmed_and_closed_at_the_smallest_and_largest_number() -> None:
    value = Distribution(
        count=3,
        sum=6.0,
        min=1.5,
        max=3.5,
        edges=(0.0, 1.0, 2.0, 4.0, 8.0),
        counts=(0, 1, 2, 0),
    )

    assert histogram(value) == {
        "_type": "trackio.histogram",
        "bins": [1.5, 2.0, 3.5],
        "values": [1, 2],
    }


def test_reserved_names_are_renamed_as_trackio_does_and_an_axis_is_never_overwritten() -> (
    None
):
    row = loss(
        3,
        values={
            "step": 1.0,
            "time": 2.0,
            "__x": 3.0,
            "trainer/step": 99.0,
            "loss": 4.0,
        },
    )

    shown = {
        "__step": 1.0,
        "__time": 2.0,
        "____x": 3.0,
        "__trainer/step": 99.0,
        "loss": 4.0,
    }
    assert row_metrics(row) == shown
    assert row_metrics(row, all_series=True) == {
        "trainer/step": 3,
        "explorer/step": 7,
        **shown,
    }


def test_of_the_statistics_of_rollouts_those_that_hardly_change_are_written_only_on_request() -> (
    None
):
    names = ("reward/mean", "reward/max", "staleness/max", "eval/reward/max")
    charted = {f"explorer/rollouts/{name}": 1.0 for name in names}
    counts = {
        f"explorer/rollouts/{name}": 1.0
        for name in ("total", "kept", "eval/total", "eval/kept")
    }
    statistics = charted | counts
    row = loss(3, id="s:explorer:train:3", steps={}, values=statistics)

    assert row_metrics(row) == charted
    assert row_metrics(row, all_series=True) == statistics
    assert row_metrics(replace(row, id="m:a:3")) == statistics  # a program's own


@pytest.mark.parametrize("nothing", ["", "\n\n"])
def test_the_list_of_traces_shows_the_answer_after_a_tool_call_the_role_and_the_reward(
    nothing: str,
) -> None:
    call = {
        "role": "assistant",
        "content": nothing,
        "tool_calls": [{"id": "1", "function": {"name": "f"}}],
    }
    talk = [{"role": "user", "content": "2+2?"}, call, {"role": "tool", "content": "4"}]
    talk.append({"role": "assistant", "content": "It is 4."})
    talk.append({"role": "assistant", "content": nothing})
    rollout = RolloutRecord(
        id="4bf92f3577b34da6a3ce929d0e0e4736", role="explorer", key="explorer/rollouts", step=4, axis="explorer/step",
        start_unix_ns=NOW, end_unix_ns=NOW, messages=talk, reward=0.75,
    )  # fmt: skip

    shown = rollout_trace(rollout)

    preview = {
        **call,
        "content": [{"type": "preview_of_the_answer", "text": "It is 4."}],
    }
    assert shown["messages"] == [talk[0], preview, *talk[2:]]
    assert rollout.messages[1] == call
    assert status_of(rollout) == "explorer · reward 0.75"
    assert status_of(replace(rollout, reward=None)) == "explorer"
    assert status_of(replace(rollout, error="sandbox died")) == "error"
    assert status_of(replace(rollout, metadata={"status": "mine"})) == "mine"


def status_of(rollout: RolloutRecord) -> object:
    """What the column of states shows."""
    metadata = rollout_trace(rollout)["metadata"]
    assert isinstance(metadata, dict)
    return metadata["status"]


def test_importing_the_exporter_imports_no_trackio() -> None:
    code = "import sys, otel_bridge_trackio; sys.exit('trackio' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_rows_written_before_a_kill_are_all_there(run: RunInfo, tmp_path: Path) -> None:
    code = textwrap.dedent(
        f"""
        import os, signal, sys
        from pathlib import Path
        sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[2])!r}]
        import test_writer as t
        run = t.RunInfo(id={run.id!r}, project={run.project!r}, name="ppo", folder=Path("."))
        writer = t.opened(run)
        writer.write_rows([t.loss(step) for step in range(1, 501)])
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )

    subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        env={**os.environ, "TRACKIO_TEST_DIR": str(DIRECTORY)},
    )

    assert [row["step"] for row in logs(run)] == list(range(1, 501))


def test_a_run_that_another_folder_wrote_is_said_when_it_is_opened_and_only_then(
    run: RunInfo,
) -> None:
    first, mine = opened(run), MemoryTable()
    first.write_rows([loss(1), loss(2)])

    second = opened(run, mine)
    second.write_rows([loss(3)])

    assert (found_of(first), tracker_run_id_of(first)) == ("", run.id)
    assert found_of(second) == (
        f"the Trackio project {run.project} already holds this run with 2 rows, continuing it; "
        "--new or OTEL_BRIDGE_NEW_RUN=1 starts another"
    )
    assert found_of(opened(run, mine)) == ""


def test_a_rollout_whose_times_nobody_measured_shows_none(run: RunInfo) -> None:
    span = Span(
        id="00f067aa0ba902b7",
        parent_id=None,
        name="rollout",
        kind="span",
        start_unix_ns=NOW,
        end_unix_ns=NOW,
    )
    rollout = RolloutRecord(
        id="4bf92f3577b34da6a3ce929d0e0e4736", role=None, key="rollouts", step=4, axis="step", start_unix_ns=NOW,
        end_unix_ns=NOW, spans=[span],
    )  # fmt: skip

    opened(run).write_rollouts([rollout])

    (trace,) = traces(run)
    assert not {"duration_ms", "end_time"} & spans_of(trace)[0].keys()
