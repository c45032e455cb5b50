from __future__ import annotations

import copy
import pickle
import random
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import otel_bridge
from otel_bridge.emit import recorded_facts
from otel_bridge.emit.config.resource import source_of
from otel_bridge.emit.encode.summary import summary_of
from otel_bridge.emit.run import Run
from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.segment import read_segment
from support.trainers.emit_samples import (
    CLEAN,
    SeenEvent,
    SeenRow,
    environment_of,
    held,
    run_in,
    run_script,
    seen_in,
)


def test_a_row_is_in_the_segment_when_log_returns(tmp_path: Path) -> None:
    with run_in(tmp_path, role="trainer") as run:
        run.log({"loss": 0.5, "actor": {"lr": 1e-6}, "tokens": 3}, step=10)

        (seen,) = seen_in(tmp_path)
        assert seen.rows == [
            SeenRow(10, {"loss": 0.5, "actor/lr": 1e-6, "tokens": 3}, 1)
        ]


def test_a_copy_of_a_run_is_the_run_and_a_pickle_of_it_says_how_another_process_joins(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path) as run:
        assert copy.deepcopy({"callbacks": [run]}) == {"callbacks": [run]}
        assert copy.copy(run) is run
        with pytest.raises(TypeError, match=re.escape("run.env()")):
            pickle.dumps(run)


def test_the_segment_says_which_run_it_is_and_who_sends(tmp_path: Path) -> None:
    with run_in(
        tmp_path, role="trainer", tags=["a", "b"], group="sweep", entity="lab", rank=0
    ) as run:
        (seen,) = seen_in(tmp_path)

    assert run.id == "22e1ec6e7a3b4e6b" or len(run.id) == 16
    header = seen.header
    assert (header.run_id, header.project, header.run_name) == (run.id, "gsm8k", "ppo")
    assert (header.kind, header.role, header.hold) == ("process", "trainer", True)
    assert seen.resource == {
        "service.name": "trainer",
        "rl.project": "gsm8k",
        "rl.run.name": "ppo",
        "rl.run.id": run.id,
        "rl.role": "trainer",
        "rl.rank": 0,
        "rl.world_size": 1,
        "rl.node.rank": 0,
        "rl.instance.id": header.instance_id,
        "rl.run.group": "sweep",
        "rl.run.tags": ["a", "b"],
        "rl.wandb.entity": "lab",
        "rl.instance.start_unix_ns": seen.resource["rl.instance.start_unix_ns"],
        **source_of({}, Path.cwd()),
    }


def test_without_a_step_a_row_gets_the_one_after_the_last_of_its_role(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path, role="trainer") as run:
        run.log({"a": 1.0})
        run.log({"a": 1.0}, step=10)
        run.log({"a": 1.0})
        run.log({"a": 1.0}, role="explorer")
        run.log({"a": 1.0}, role="trainer")
        run.log({"a": 1.0}, step=4)
        run.log({"a": 1.0})

        (seen,) = seen_in(tmp_path)
        assert [(row.step, row.role) for row in seen.rows] == [
            (0, None), (10, None), (11, None), (0, "explorer"), (12, None), (4, None), (5, None),
        ]  # fmt: skip
        assert (run.last_step(), run.last_step("explorer"), run.last_step("judge")) == (
            5,
            0,
            None,
        )


def test_times_of_rows_increase(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        for _ in range(500):
            run.log({"a": 1.0})

        (seen,) = seen_in(tmp_path)
        assert seen.times == sorted(set(seen.times))


def test_a_row_without_a_number_is_not_a_row_and_takes_no_sequence_number(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path) as run:
        run.log({"a": 1.0}, step=1)
        run.log({"a": "text"}, step=2)
        run.log({}, step=3)
        run.log({"a": 2.0}, step=4)

        (seen,) = seen_in(tmp_path)
        assert [(row.step, row.seq) for row in seen.rows] == [(1, 1), (4, 2)]


def test_what_names_no_step_belongs_to_the_row_that_is_still_open(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path) as run:
        run.log({"a": 1.0}, step=5, commit=False)
        while_open = run.next_step()
        run.log({"b": 1.0})

        (seen,) = seen_in(tmp_path)
        assert [row.step for row in seen.rows] == [5, 5]
        assert (while_open, run.next_step(), run.next_step("judge")) == (5, 6, 0)


def test_a_row_that_holds_itself_is_cut_at_itself(tmp_path: Path) -> None:
    values: dict[str, Any] = {"loss": 0.5, "n": 2}
    values["self"] = values

    with run_in(tmp_path) as run:
        run.log(values)

        (seen,) = seen_in(tmp_path)
        assert [row.values for row in seen.rows] == [{"loss": 0.5, "n": 2}]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("nothing", [{}, OrderedDict[str, float](), None, "loss"])
def test_an_empty_row_uses_up_no_step(tmp_path: Path, nothing: Any, rank: int) -> None:
    with run_in(tmp_path, rank=rank) as run:
        run.log(nothing)
        assert run.last_step() is None
        run.log({"a": 1.0})
        run.log(nothing)
        run.log(nothing, role="judge")
        run.log({"a": 2.0})

        assert run.recorder is not None
        assert run.recorder.last_steps() == {None: 1}
        if rank == 0:
            (seen,) = seen_in(tmp_path)
            assert [(row.step, row.seq) for row in seen.rows] == [(0, 1), (1, 2)]


def test_an_empty_row_with_a_step_says_where_the_run_is(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        run.log({}, step=7)
        run.log({"a": 1.0})

        (seen,) = seen_in(tmp_path)
        assert [row.step for row in seen.rows] == [8]


@pytest.mark.parametrize("rank", [0, 1])
def test_an_empty_row_ends_the_step_that_commit_false_holds_open_as_in_wandb(
    tmp_path: Path, rank: int
) -> None:
    with run_in(tmp_path, rank=rank) as run:
        run.log({"a": 1.0}, commit=False)
        run.log({"b": 1.0}, commit=False)
        run.log({})
        run.log({})
        run.log({"a": 2.0})

        assert run.last_step() == 1
        if rank == 0:
            (seen,) = seen_in(tmp_path)
            assert [row.step for row in seen.rows] == [0, 0, 1]


def test_nothing_that_log_is_given_raises(tmp_path: Path) -> None:
    class Evil:
        @property
        def shape(self) -> object:
            raise RuntimeError

    with run_in(tmp_path) as run:
        for values in (
            None,
            3,
            "x",
            [1],
            {"a": Evil()},
            {Evil(): 1},
            {"\ud800": 1.0},
            {"many": {str(n): n for n in range(10_000)}},
        ):
            run.log(values, step=object())  # type: ignore[arg-type]
        run.log({"loss": 1.0}, step=np.int64(9))  # type: ignore[arg-type]

        (seen,) = seen_in(tmp_path)
        assert [len(row.values) for row in seen.rows] == [1, 1, 10_000, 1]
        assert seen.rows[-1] == SeenRow(9, {"loss": 1.0}, 4)


def test_the_id_in_what_is_not_an_exporter_is_none_and_counted(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        assert run.id_in(["mlflow"]) is None  # type: ignore[arg-type]

        (seen,) = seen_in(tmp_path)
        assert seen.event("rl.dropped").body == {"internal_error": 1}


def test_the_config_is_an_event_without_secrets(tmp_path: Path) -> None:
    with run_in(
        tmp_path, config={"lr": 1e-3, "wandb_api_key": "0123456789abcdef"}
    ) as run:
        run.log_config({"model": {"layers": 2}})

        (seen,) = seen_in(tmp_path)
        assert seen.events == [
            SeenEvent(
                "rl.run.config",
                {"rl.event.seq": 1},
                {"lr": 1e-3, "wandb_api_key": "[redacted]"},
            ),
            SeenEvent("rl.run.config", {"rl.event.seq": 2}, {"model": {"layers": 2}}),
        ]


def test_a_keyword_is_recorded_after_the_config_beside_it(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        run.log_config({"lr": 0.1, "seed": 1}, lr=0.2)

        (seen,) = seen_in(tmp_path)
        bodies = [event.body for event in seen.events]
        assert bodies == [{"lr": 0.1, "seed": 1}, {"lr": 0.2}]


def test_a_row_may_have_a_time_of_its_own_in_unix_nanoseconds(tmp_path: Path) -> None:
    at = 1_600_000_000_000_000_000
    with run_in(tmp_path) as run:
        for _ in range(4):
            run.log({"loss": 1.0})
        run.log({"loss": 2.0}, step=9, time_unix_ns=at)
        otel_bridge.log({"loss": 3.0, "n": 1}, time_unix_ns=np.int64(at), commit=False)
        for bad in (
            1_600_000_000,
            1_600_000_000_000,
            1.6e9,
            -at,
            1 << 63,
            float("nan"),
            "now",
            True,
            [at],
        ):
            run.log({"loss": 4.0}, 11, time_unix_ns=bad)  # type: ignore[arg-type]  # mistakes of a user
        run.log({"loss": 5.0})
        run.finish()

    (seen,) = seen_in(tmp_path)
    rows = [(row.step, row.values["loss"], row.own_ns) for row in seen.rows]
    assert rows == [
        *((step, 1.0, None) for step in range(4)), (9, 2.0, at), (10, 3.0, at), *[(11, 4.0, None)] * 9, (12, 5.0, None)
    ]  # fmt: skip
    assert [row.seq for row in seen.rows] == list(range(1, 17))
    assert seen.times == sorted(set(seen.times))
    assert seen.event("rl.dropped").body == {"bad_time": 9}


def test_an_alert_is_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_facts, "MAX_ALERTS", 3)
    with run_in(tmp_path, role="trainer") as run:
        run.log({"loss": 1.0}, step=7)
        run.alert("kl", "password=hunter2hunter2", level="ERROR")
        run.alert("kl", role="judge")
        otel_bridge.alert(
            "odd", "a" * 9_980 + " sk-ant-api03-" + "b" * 80, level=object()
        )  # type: ignore[arg-type]  # a user's mistake
        run.alert("one too many")
        run.alert()
        run.finish()

        (seen,) = seen_in(tmp_path)
    first, second, third = (event for event in seen.events if event.name == "rl.alert")
    assert first.attributes == {
        "rl.alert.title": "kl",
        "rl.alert.level": "error",
        "rl.step": 7,
        "rl.event.seq": 1,
    }
    assert "hunter2" not in str(first.body)
    assert second.attributes == {
        "rl.alert.title": "kl", "rl.alert.level": "warn", "rl.role": "judge", "rl.event.seq": 2
    }  # fmt: skip
    assert (third.attributes["rl.alert.title"], third.attributes["rl.alert.level"]) == (
        "odd",
        "warn",
    )
    assert third.body == "a" * 9_980 + " [redacted]"
    assert seen.event("rl.dropped").body == {
        "alert_level": 1,
        "alert_limit": 1,
        "alert_title": 1,
    }


@pytest.mark.parametrize(
    ("level", "wrong"), [("bogus", 1), ("Critical", 0), (None, 0), ("", 1)]
)
def test_a_level_that_is_not_one_is_counted_and_its_alert_warns(
    tmp_path: Path, level: str | None, wrong: int
) -> None:
    with run_in(tmp_path) as run:
        run.alert("kl", level=level)
        run.finish()

        (seen,) = seen_in(tmp_path)
    (alert,) = (event for event in seen.events if event.name == "rl.alert")
    assert alert.attributes["rl.alert.level"] == (
        "error" if level == "Critical" else "warn"
    )
    assert [
        dict(event.body) for event in seen.events if event.name == "rl.dropped"
    ] == [{"alert_level": 1}] * wrong


def test_the_summary_is_an_event_of_numbers_texts_and_bools(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        run.summary(
            {
                "best": np.float32(0.5),
                "eval": {"ok": np.bool_(True), "n": 3},
                "note": "fine",
            },
            steps=7,
        )
        run.summary({"best": 1.0}, role="judge")
        run.summary({"list": [1], "none": None, "": 1, "api_key": "0123456789abcdef"})
        run.summary(7)  # type: ignore[arg-type]  # a user's mistake
        run.summary({})
        assert run.recording

        (seen,) = seen_in(tmp_path)
        summaries = [event for event in seen.events if event.name == "rl.run.summary"]
        assert [
            (event.attributes.get("rl.role"), event.body) for event in summaries
        ] == [
            (
                None,
                {"best": 0.5, "eval/ok": True, "eval/n": 3, "note": "fine", "steps": 7},
            ),
            ("judge", {"best": 1.0}),
            (None, {"api_key": "[redacted]"}),
        ]
        run.finish()

    (seen,) = seen_in(tmp_path)
    assert seen.event("rl.dropped").body == {
        "summary_value": 2,
        "empty_key": 1,
        "not_a_mapping": 1,
    }


def test_a_secret_below_its_name_does_not_leave_in_a_summary() -> None:
    values = {
        "api_key": {"x": "hello-secret", "tries": 3},
        "api": {"key": "hello-secret"},
        "note": {"x": "fine"},
    }

    assert summary_of(values, lambda *drop: pytest.fail(str(drop))) == {
        "api_key/x": "[redacted]", "api_key/tries": 3, "api/key": "[redacted]", "note/x": "fine",
    }  # fmt: skip


@pytest.mark.parametrize(
    "call",
    [
        lambda run: run.log({"a": 1.0, "b": object()}),
        lambda run: run.log(7),
        lambda run: run.log(7, commit=False),
        lambda run: run.log_rollouts([7]),
        lambda run: run.summary({"b": object()}),
        lambda run: run.log_config(7),
        lambda run: run.alert(""),
    ],
)
def test_a_drop_is_on_the_disk_when_its_call_returns(
    tmp_path: Path, call: Callable[[Run], None]
) -> None:
    with run_in(tmp_path) as run:
        call(run)

        (seen,) = seen_in(tmp_path)
        body = seen.event("rl.dropped").body
        assert isinstance(body, dict)
        assert list(body.values()) == [1]


def test_finish_says_the_end_once(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        run.log({"a": 1.0, "b": "x"})
        run.finish("failed")
        run.finish("finished")
        run.log({"a": 2.0})

    (seen,) = seen_in(tmp_path)
    assert seen.events == [
        SeenEvent(
            "rl.dropped",
            {"rl.dropped.keys": {"text": "b"}, "rl.event.seq": 1},
            {"text": 1},
        ),
        SeenEvent(
            "rl.run.end", {"rl.run.status": "failed", "rl.seq": 1, "rl.event.seq": 2}
        ),
    ]
    assert len(seen.rows) == 1


def test_an_interrupt_of_what_comes_before_the_end_leaves_no_part_without_an_end(
    tmp_path: Path,
) -> None:
    def interrupt(_run: Run) -> None:
        raise KeyboardInterrupt

    with run_in(tmp_path) as run:
        run.call_before_end(interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.finish("killed")

    (seen,) = seen_in(tmp_path)
    assert seen.event("rl.run.end").attributes["rl.run.status"] == "killed"


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("", "finished"),
        ("1 / 0", "failed"),
        ("raise SystemExit(0)", "finished"),
        ("run.finish('killed')", "killed"),
        ("with run:\n    raise SystemExit(3)", "failed"),
        ("with run:\n    pass\n1 / 0", "finished"),
    ],
)
def test_the_end_of_a_script_says_how_it_went(
    tmp_path: Path, ending: str, status: str
) -> None:
    script = f"import otel_bridge\nrun = otel_bridge.init('p', 'n')\nrun.log({{'a': 1}})\n{ending}\n"

    run_script(script, held(tmp_path))

    (seen,) = seen_in(tmp_path)
    assert seen.event("rl.run.end").attributes["rl.run.status"] == status


def test_finish_asks_writers_that_rest_or_wait_to_write_now(tmp_path: Path) -> None:
    with run_in(tmp_path, role="trainer") as run:
        run.log({"a": 1.0})
        run.finish()

    (folder,) = run_folders(tmp_path)
    (segment,) = folder.segments()
    _, scan = read_segment(segment.path, 0, limit_bytes=1 << 20, final=True)
    assert [frame.signal for frame in scan.frames][-2:] == [Signal.LOGS, Signal.CONTROL]


@pytest.mark.parametrize(("ranks", "steps"), [("0", []), ("all", [1, 2])])
def test_rows_of_ranks_above_0_are_recorded_only_when_asked_for(
    tmp_path: Path, ranks: str, steps: list[int]
) -> None:
    with run_in(
        tmp_path, {"RANK": "1", "WORLD_SIZE": "2", "OTEL_BRIDGE_RANKS": ranks}
    ) as run:
        run.log({"loss": 1.0}, step=1)
        run.log({"loss": 1.0})

        (seen,) = seen_in(tmp_path)
        assert seen.steps == steps
        assert run.last_step() == 2
        assert (seen.resource["rl.rank"], seen.resource["rl.world_size"]) == (1, 2)


def test_the_exporter_none_records_nothing_and_everything_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {
        **CLEAN,
        "OTEL_BRIDGE_DIR": str(tmp_path / "runs"),
        "OTEL_BRIDGE_EXPORTERS": "none",
    }
    with (
        environment_of(environment),
        otel_bridge.init("p", "n", config={"a": 1}) as run,
    ):
        run.log({"a": 1.0})
        run.count_drop("text")
        assert (run.flush(), run.recording, run.urls, run.last_step()) == (
            True,
            False,
            {},
            None,
        )

    assert (
        capsys.readouterr().err == "otel-bridge: exporters: none, nothing is recorded\n"
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "record",
    [
        lambda run: run.log_rollouts([{"messages": "q"}], step=1),
        lambda run: run.log_reward("id", 1.0),
        lambda run: run.train_on(1, ["id"]),
        lambda run: run.phase("generate", step=1).__enter__(),
    ],
)
def test_a_record_after_finish_is_said_whatever_it_is(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    record: Callable[[Run], object],
) -> None:
    with run_in(tmp_path) as run:
        run.finish(timeout_s=0)
        capsys.readouterr()
        # What an SDK sends at its shutdown is counted, and is not worth a line.
        run.append(Signal.METRICS, b"", whole=True)
        assert not capsys.readouterr().err

        record(run)

    assert capsys.readouterr().err.startswith(
        "otel-bridge: a record arrived after finish() and was not recorded;"
    )


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("otel_bridge.log({'a': 1})", "log"),
        ("otel_bridge.chat('model').__enter__()", "chat"),
        ("otel_bridge.tool('search').__enter__()", "tool"),
    ],
)
def test_the_first_call_without_a_run_is_said_once(
    tmp_path: Path, call: str, name: str
) -> None:
    done = run_script(f"import otel_bridge\n{call}\n{call}", CLEAN, cwd=tmp_path)

    assert (
        done.stderr
        == f"otel-bridge: {name}() without a run, before init() or after finish(): nothing is recorded\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_in_the_bridge_nothing_emits(tmp_path: Path) -> None:
    with run_in(tmp_path, {"OTEL_BRIDGE_NO_BRIDGE": "1"}) as run:
        run.log({"a": 1.0})

    assert seen_in(tmp_path) == []


def test_no_state_of_random_numbers_is_touched(tmp_path: Path) -> None:
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()

    with run_in(tmp_path, config={"a": 1}) as run:
        for step in range(50):
            run.log({"loss": 0.5, "values": np.arange(10.0)}, step=step)
        run.flush(0)

    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


def test_system_metrics_are_asked_for_in_the_segment_and_cost_the_process_nothing(
    tmp_path: Path,
) -> None:
    asked: list[float] = []
    for name, given in (("asked", True), ("not", False)):
        with run_in(
            tmp_path / name, {"OTEL_BRIDGE_SYSTEM_METRICS_S": "5"}, system_metrics=given
        ) as run:
            run.log({"loss": 1.0})
            (seen,) = seen_in(tmp_path / name)
            asked.append(seen.header.system_metrics_s)

    assert (asked, len(seen.rows)) == ([5.0, 0.0], 1)


def test_steps_go_on_where_a_run_is_begun_again_in_the_same_process(
    tmp_path: Path,
) -> None:
    with environment_of(held(tmp_path)):
        for _ in range(2):
            run = otel_bridge.init("gsm8k", "ppo", role="trainer")
            run.log({"a": 1.0})
            run.log({"a": 1.0})
            run.log({"b": 1.0}, role="judge")
            run.finish()
        as_judge = otel_bridge.init("gsm8k", "ppo", role="judge")
        as_judge.log({"b": 1.0})
        as_judge.finish()
        another = otel_bridge.init("gsm8k", "another", role="trainer")
        another.log({"a": 1.0})
        another.finish()

    seen = sorted(seen_in(tmp_path), key=lambda one: one.header.created_unix_ns)
    assert [one.steps for one in seen] == [[0, 1, 0], [2, 3, 1], [2], [0]]
