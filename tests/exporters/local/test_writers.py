from __future__ import annotations

import dataclasses
import errno
import io
import math
import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest

from otel_bridge.errors import BlockedError, ConfigError, RetryableError
from otel_bridge.exporter import Exporter, RunInfo, RunWriter, WritesPlainTraces
from otel_bridge.records import PlainTrace, Span, Status
from otel_bridge.testing import MemoryTable, samples
from otel_bridge.testing.contents import (
    Contents,
    HeldDistribution,
    HeldRollout,
    HeldScalar,
    flat_configs,
    scalar_text,
)
from otel_bridge.testing.contract import ReadBack, WriterContract
from otel_bridge_local import console
from otel_bridge_local import file as file_exporter
from otel_bridge_local.console import ConsoleRunWriter


class TestFile(WriterContract):
    target = "otel_bridge_local:file"

    @pytest.fixture
    def exporter(self) -> Exporter:
        return file_exporter

    @pytest.fixture
    def environment(self) -> Mapping[str, str]:
        return {}

    @pytest.fixture
    def read_back(self) -> ReadBack:
        return held


def lines(run: RunInfo) -> list[dict[str, object]]:
    files = sorted((run.folder / "file").glob("records-*.jsonl"))
    return [
        orjson.loads(line) for file in files for line in file.read_bytes().splitlines()
    ]


def held(run: RunInfo) -> Contents:
    scalars, distributions, rollouts, late, configs, summary, alerts, status = (
        [],
        [],
        [],
        [],
        {},
        {},
        [],
        None,
    )
    for line in lines(run):
        status = None
        if line["kind"] == "row":
            for key, value in line["values"].items():
                if isinstance(value, dict):
                    low, high = (float(value[side]) for side in ("min", "max"))
                    distributions.append(
                        HeldDistribution(key, line["step"], low, high, value["count"])
                    )
                elif value is not None:
                    scalars.append(
                        HeldScalar(
                            key,
                            line["step"],
                            float(value),
                            line["time_unix_ns"] // 1_000_000,
                        )
                    )
        elif line["kind"] == "rollout":
            reward = None if line["reward"] is None else float(line["reward"])
            rollouts.append(
                HeldRollout(
                    line["id"], reward, len(line["messages"]), len(line["spans"])
                )
            )
        elif line["kind"] == "evaluation" and line["value"] is not None:
            late.append((line["rollout_id"], line["name"], line["value"]))
        elif line["kind"] == "config":
            configs[line["role"]] = line["config"]
        elif line["kind"] == "alert":
            alerts.append((line["title"], line["level"]))
        elif line["kind"] == "summary":
            summary |= {
                key: scalar_text(math.nan if value == "NaN" else value)
                for key, value in line["summary"].items()
            }
        elif line["kind"] == "end":
            status = Status(line["status"])
    return Contents(
        scalars,
        distributions,
        rollouts,
        late,
        flat_configs(configs.items()),
        status,
        alerts,
        summary,
    )


def opened(run: RunInfo, tmp_path: Path, **env: str) -> RunWriter:
    settings = file_exporter.read_settings(env, tmp_path)
    return file_exporter.open(run, settings, MemoryTable(tmp_path / "memory.db"))


def test_the_oldest_file_goes_when_the_bound_is_reached(tmp_path: Path) -> None:
    run = samples.run_info(tmp_path)
    writer = opened(run, tmp_path, OTEL_BRIDGE_FILE_BYTES="64KiB")

    for record in samples.placed(samples.rows(400)):
        writer.write_rows([record])

    files = list((run.folder / "file").iterdir())
    assert sum(file.stat().st_size for file in files) <= 64 << 10
    assert [line["position"] for line in lines(run)][-1] == 400
    assert len(lines(run)) > 50


def test_a_batch_larger_than_the_bound_keeps_to_it_too(tmp_path: Path) -> None:
    run = samples.run_info(tmp_path)
    writer = opened(run, tmp_path, OTEL_BRIDGE_FILE_BYTES="64KiB")

    writer.write_rows(samples.placed(samples.rows(800)))

    files = list((run.folder / "file").iterdir())
    assert sum(file.stat().st_size for file in files) <= 64 << 10
    assert [line["position"] for line in lines(run)][-1] == 800
    assert writer.durable() == 800


def test_files_of_a_former_larger_bound_make_room_too(tmp_path: Path) -> None:
    run = samples.run_info(tmp_path)
    records = samples.placed(samples.rows(420))
    opened(run, tmp_path).write_rows(records[:400])
    writer = opened(run, tmp_path, OTEL_BRIDGE_FILE_BYTES="64KiB")

    writer.write_rows(records[400:])

    files = list((run.folder / "file").iterdir())
    assert sum(file.stat().st_size for file in files) <= 64 << 10
    assert [line["position"] for line in lines(run)][-1] == 420


def test_a_copy_that_a_user_made_is_not_deleted_as_the_oldest_file(
    tmp_path: Path,
) -> None:
    run = samples.run_info(tmp_path)
    writer = opened(run, tmp_path, OTEL_BRIDGE_FILE_BYTES="64KiB")
    copy = run.folder / "file" / "records-000001 before the crash.jsonl"
    copy.write_text("mine")

    for record in samples.placed(samples.rows(400)):
        writer.write_rows([record])

    assert copy.read_text() == "mine"


def test_a_torn_last_line_is_cut_and_written_again(tmp_path: Path) -> None:
    run = samples.run_info(tmp_path)
    records = samples.placed(samples.rows(3))
    opened(run, tmp_path).write_rows(records)
    (file,) = (run.folder / "file").iterdir()
    os.truncate(file, file.stat().st_size - 5)

    again = opened(run, tmp_path)

    assert again.durable() == 2
    again.write_rows(records)
    assert [line["position"] for line in lines(run)] == [1, 2, 3]


def test_a_new_ledger_begins_a_new_file_since_its_positions_say_nothing_of_the_old_ones(
    tmp_path: Path,
) -> None:
    run = samples.run_info(tmp_path)
    opened(run, tmp_path).write_rows(samples.placed(samples.rows(5)))
    (tmp_path / "memory.db").unlink()

    again = opened(run, tmp_path)

    assert again.durable() == 0
    again.write_rows(samples.placed(samples.rows(2)))
    assert [line["position"] for line in lines(run)] == [1, 2, 3, 4, 5, 1, 2]


def test_a_new_ledger_whose_first_file_could_not_be_made_begins_it_at_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = samples.run_info(tmp_path)
    opened(run, tmp_path).write_rows(samples.placed(samples.rows(5)))
    (tmp_path / "memory.db").unlink()

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        module = sys.modules[file_exporter.open.__module__]
        patched.setattr(module, "open_regular", full)
        with pytest.raises(RetryableError):
            opened(run, tmp_path)

    opened(run, tmp_path).write_rows(samples.placed(samples.rows(2)))

    assert opened(run, tmp_path).durable() == 2


def test_a_full_disk_leaves_only_whole_lines_and_is_retried(tmp_path: Path) -> None:
    code = textwrap.dedent(
        f"""
        import resource, signal, sys
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_writers import *
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        folder = Path({str(tmp_path)!r})
        writer = opened(samples.run_info(folder), folder)
        records = samples.placed(samples.rows(50))
        writer.write_rows(records[:2])
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, resource.RLIM_INFINITY))
        try:
            writer.write_rows(records[2:])
        except RetryableError as exc:
            print("retry", exc.position)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        writer.write_rows(records[2:])
        """
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    assert done.stdout == "retry 3\n", done.stderr
    assert [line["position"] for line in lines(samples.run_info(tmp_path))] == list(
        range(1, 51)
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_a_next_file_that_cannot_be_opened_is_retried_and_nothing_goes_into_another_file(
    tmp_path: Path,
) -> None:
    run = samples.run_info(tmp_path)
    writer = opened(run, tmp_path, OTEL_BRIDGE_FILE_BYTES="64KiB")
    records = samples.placed(samples.rows(400))
    in_the_way = run.folder / "file" / "records-000002.jsonl"
    in_the_way.mkdir()
    with pytest.raises(RetryableError) as raised:
        writer.write_rows(records)

    with (tmp_path / "another file").open("wb") as another:
        with pytest.raises(RetryableError):
            writer.write_rows(records)
        in_the_way.rmdir()
        writer.write_rows(records)

        assert os.fstat(another.fileno()).st_size == 0
    assert raised.value.position is not None
    assert 1 < raised.value.position < 400
    assert [line["position"] for line in lines(run)][-1] == 400


def test_a_folder_that_cannot_be_made_blocks_with_what_to_do(tmp_path: Path) -> None:
    run = samples.run_info(tmp_path)
    run.folder.write_text("in the way")

    with pytest.raises((BlockedError, RetryableError)):
        opened(run, tmp_path)


def test_a_bound_that_is_not_a_size_is_an_error_of_the_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="OTEL_BRIDGE_FILE_BYTES='much'"):
        file_exporter.read_settings({"OTEL_BRIDGE_FILE_BYTES": "much"}, tmp_path)


def test_the_console_prints_a_line_for_each_record(tmp_path: Path) -> None:
    out = io.StringIO()
    writer = ConsoleRunWriter(samples.run_info(tmp_path), out)

    writer.write_rows(
        samples.placed([samples.row(3, {"loss": 0.25, "grad": samples.distribution()})])
    )
    writer.write_rollouts(samples.placed([samples.rollout(0)]))
    writer.end(Status.FINISHED)

    first, second, last = out.getvalue().splitlines()
    assert first.endswith(
        "ppo-7b trainer/step=3 trainer/loss=0.25 trainer/grad=[10 values, 0.5 to 5.5]"
    )
    assert "rollouts" in second
    assert last == "ppo-7b run finished"


def test_the_console_prints_the_label_of_an_evaluation_without_a_number(
    tmp_path: Path,
) -> None:
    out = io.StringIO()
    writer = ConsoleRunWriter(samples.run_info(tmp_path), out)
    rollout = samples.rollout(0)

    writer.write_evaluations(
        samples.placed(
            [
                samples.evaluation(rollout, label="good"),
                samples.evaluation(rollout, None, label="bad\nstyle"),
            ]
        )
    )

    first, second = out.getvalue().splitlines()
    assert first.endswith(f"{rollout.id} judge=0.5")
    assert second.endswith(f"{rollout.id} judge=bad style")


def test_a_console_that_lacks_a_character_prints_its_escape(tmp_path: Path) -> None:
    log = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    writer = ConsoleRunWriter(samples.run_info(tmp_path), log)

    writer.write_alerts([samples.alert(1, "größer als ∞")])

    assert "größer als \\u221e step 1\n" in log.buffer.getvalue().decode("latin-1")


def test_a_console_that_is_gone_is_retried(tmp_path: Path) -> None:
    out = io.StringIO()
    writer = ConsoleRunWriter(samples.run_info(tmp_path), out)
    out.close()

    with pytest.raises(RetryableError) as caught:
        writer.write_rows(samples.placed(samples.rows(2)))

    assert caught.value.position == 1


def test_the_console_follows_the_log_of_the_run(tmp_path: Path) -> None:
    run = samples.run_info(tmp_path / "a b")

    assert (
        console.read_settings({}, tmp_path).view(run)
        == f"tail -f '{run.folder}/bridge.log'"
    )


def other_trace(position: int) -> PlainTrace:
    root = Span(
        f"{1:016x}",
        None,
        "GET /health",
        "span",
        1_000_000_000,
        1_002_500_000,
        {"code": 500},
        error="boom",
    )
    return PlainTrace(
        f"{position:032x}",
        "server",
        "GET /health",
        1_000_000_000,
        1_002_500_000,
        [root],
        position=position,
    )


def test_a_trace_that_is_not_a_rollout_is_a_line_of_each(tmp_path: Path) -> None:
    run, stream = samples.run_info(tmp_path), io.StringIO()
    written, printed = (
        file_exporter.open(
            run, file_exporter.read_settings({}, run.folder), MemoryTable()
        ),
        ConsoleRunWriter(run, stream),
    )

    for writer in (written, printed):
        assert isinstance(writer, WritesPlainTraces)
        writer.write_traces([other_trace(1), other_trace(2)])

    (first, second) = lines(run)
    assert (first["kind"], first["id"], first["role"], first["name"]) == (
        "trace",
        f"{1:032x}",
        "server",
        "GET /health",
    )
    assert [
        (span["name"], span["error"], span["attributes"]) for span in second["spans"]
    ] == [("GET /health", "boom", {"code": 500})]
    assert [line.partition(" ")[2] for line in stream.getvalue().splitlines()] == [
        f"{run.name} server trace GET /health spans=1 took=2.5ms error=boom"
    ] * 2
    assert written.durable() == 2


def test_a_dead_letter_that_is_tried_again_is_a_line_and_moves_no_position(
    tmp_path: Path,
) -> None:
    run = samples.run_info(tmp_path)
    records = samples.placed(samples.rows(4))
    writer = opened(run, tmp_path)
    writer.write_rows(records[:3])

    writer.write_rows([dataclasses.replace(records[3], position=0)])
    at_end = writer.durable()
    again = opened(run, tmp_path)
    again.write_rows(records[2:3])

    assert (at_end, again.durable()) == (3, 3)
    assert [(line["position"], line["step"]) for line in lines(run)] == [
        (1, 1), (2, 2), (3, 3), (0, 4),
    ]  # fmt: skip
