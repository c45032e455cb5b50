"""Rows in parts: each call is on the disk when it returns, the number comes last."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from opentelemetry.proto.metrics.v1 import metrics_pb2

from otel_bridge.emit.recording.recorder import OpenRow, Recorder
from otel_bridge.emit.run import Run
from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.segment import read_segment
from support.trainers.emit_samples import run_in


def recorder_of(run: Run) -> Recorder:
    assert run.recorder is not None
    return run.recorder


def frames_in(base: Path) -> list[dict[str, Any]]:
    """Name to number of each metrics frame, with the frame's step, row number and time, in order."""
    found: list[dict[str, Any]] = []
    for folder in run_folders(base):
        for file in folder.segments():
            _, scan = read_segment(file.path, 0, limit_bytes=1 << 30, final=True)
            for frame in scan.frames:
                metrics = (
                    metrics_pb2.ScopeMetrics.FromString(frame.payload).metrics
                    if frame.signal == 1
                    else []
                )
                values: dict[str, Any] = {}
                for metric in metrics:
                    (point,) = metric.gauge.data_points
                    values[metric.name] = getattr(point, point.WhichOneof("value"))
                    values |= {
                        pair.key: pair.value.int_value for pair in point.attributes
                    }
                    values["time"] = point.time_unix_nano
                if values:
                    found.append(values)
    return found


def test_each_part_is_appended_at_once_and_the_number_last_with_the_final_step(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path) as run:
        row, recorder = OpenRow(), recorder_of(run)
        recorder.add_part(row, {"loss": 1.0, "nested": {"x": 2}}, 3)
        first = frames_in(tmp_path)
        run.log({"between": 1.0}, 9)
        recorder.add_part(row, {"loss": 0.5, "text": "dropped"}, 3)
        recorder.end_row(row, 7)

        time_ns = first[0]["time"]
        assert first == [{"loss": 1.0, "nested/x": 2, "rl.step": 3, "time": time_ns}]
        _, between, later, number = frames_in(tmp_path)
        assert (between["rl.seq"], between["time"] > time_ns) == (1, True)
        assert later == {"loss": 0.5, "rl.step": 3, "time": time_ns}
        assert number == {"rl.row": 2, "rl.step": 7, "rl.seq": 2, "time": time_ns}
        assert (run.last_step(), recorder.drops.counts) == (7, {"text": 1})


def test_the_parts_of_many_rows_keep_their_values_steps_and_numbers(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path, role="train") as run:
        recorder = recorder_of(run)
        for step in range(300):  # numbers and steps of one byte and of two
            row = OpenRow("other" if step % 2 else None)
            recorder.add_part(row, {"a": step / 2, "b/c": 1.0}, step)
            if step % 3 == 0:
                recorder.add_part(row, {"a": -1.0, "b/c": 7}, step)
            recorder.end_row(row, step)

        frames = frames_in(tmp_path)
        parts, numbers = (
            [one for one in frames if ("rl.row" in one) is ends]
            for ends in (False, True)
        )
        expected: list[tuple[float, float, int]] = []
        for step in range(300):
            expected += [
                (step / 2, 1.0, step),
                *([(-1.0, 7, step)] if step % 3 == 0 else []),
            ]
        assert [(one["a"], one["b/c"], one["rl.step"]) for one in parts] == expected
        assert [(one["rl.row"], one["rl.step"], one["rl.seq"]) for one in numbers] == [
            (2, step, step + 1) for step in range(300)
        ]


def test_a_row_without_a_part_has_no_number(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        recorder = recorder_of(run)
        empty, dropped = OpenRow(), OpenRow()
        recorder.add_part(dropped, {"text": "only"}, 1)
        recorder.end_row(empty, 1)
        recorder.end_row(dropped, 1)

        assert frames_in(tmp_path) == []


def test_names_that_trackers_show_as_one_are_counted_once(tmp_path: Path) -> None:
    with run_in(tmp_path, role="train") as run:
        row, recorder = OpenRow(), recorder_of(run)
        recorder.add_part(row, {"loss": 1.0, "train/loss": 2.0}, 1)
        recorder.add_part(row, {"loss": 3.0}, 1)
        recorder.end_row(row, 1)

        assert frames_in(tmp_path)[-1]["rl.row"] == 1
        assert recorder.drops.counts == {"same_key": 1}


def test_a_forked_child_adds_to_a_row_of_its_own(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        recorder = recorder_of(run)
        recorder.add_part(OpenRow(), {"parent": 1.0}, 1)
        child = os.fork()
        if child == 0:
            run.after_fork()
            row = OpenRow()
            recorder.add_part(row, {"child": 2.0}, 1)
            recorder.end_row(row, 1)
            os._exit(0)
        os.waitpid(child, 0)

        frames = frames_in(tmp_path)
        assert sorted(name for frame in frames for name in frame if name in {"parent", "child", "rl.row"}) == [
            "child", "parent", "rl.row"
        ]  # fmt: skip
        assert [frame["rl.seq"] for frame in frames if "rl.seq" in frame] == [1]
