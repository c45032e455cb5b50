from __future__ import annotations

import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import otel_bridge
from otel_bridge.emit.drop_reasons import MEANING
from otel_bridge.errors import ConfigError
from otel_bridge.journal.folder import RunFolder
from support.trainers.emit_samples import (
    environment_of,
    held,
    run_in,
    run_script,
    seen_in,
)


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Let no file grow beyond *size_bytes*: a write then fails as on a full disk."""
    import signal

    before, handler = (
        resource.getrlimit(resource.RLIMIT_FSIZE),
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_folder_that_cannot_be_made_is_an_error_at_init(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with (
        environment_of(held(tmp_path / "file" / "runs")),
        pytest.raises(ConfigError, match="OTEL_BRIDGE_DIR"),
    ):
        otel_bridge.init("p", "n")


def test_rows_that_a_full_disk_has_no_room_for_are_dropped_and_the_rest_stays_whole(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path, role="trainer") as run:
        with largest_file(100_000):
            for step in range(3):
                run.log({f"k{number}": 0.5 for number in range(3_000)}, step=step)
        run.log({"after": 1.0}, step=3)
        run.finish()

    (seen,) = seen_in(tmp_path)
    assert [(row.step, row.seq) for row in seen.rows] == [(3, 1)]
    assert seen.gap_bytes == 0
    assert seen.event("rl.dropped").body == {"disk_full": 3}


def test_media_that_a_full_disk_has_no_room_for_are_dropped_and_the_rest_stays_whole(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path, role="trainer") as run:
        with largest_file(100_000):
            run.log(
                {"loss": 0.5, "film": otel_bridge.Video(b"GIF89a" + bytes(3 << 20))},
                step=0,
            )
            run.log({"note": otel_bridge.Text("small")}, step=1)
        run.finish()

    (seen,) = seen_in(tmp_path)
    assert [row.step for row in seen.rows] == [0]
    assert [event.body for event in seen.events if event.name == "rl.media"] == [
        b"small"
    ]
    assert (seen.gap_bytes, seen.event("rl.dropped").body) == (0, {"disk_full": 1})


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 1 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_the_end_and_the_counts_of_drops_have_room_on_a_disk_that_stays_full(
    small_disk: Path,
) -> None:
    with run_in(small_disk, role="trainer") as run:
        for step in (-2, -1):  # the disk is measured before the second
            run.log({"a": 1.0}, step=step)
        with (
            suppress(OSError),
            (small_disk / "ballast").open("wb", buffering=0) as ballast,
        ):
            while True:
                ballast.write(bytes(4096))
        for step in range(1_000):
            run.log({"a": 1.0, "b": 2.0, "c": 3.0}, step=step)
        run.finish("failed")

    (seen,) = seen_in(small_disk)
    # The last report has the counts of the whole run, at most one a second comes before it.
    dropped = [event.body for event in seen.events if event.name == "rl.dropped"][-1]
    assert isinstance(dropped, dict)
    assert sum(dropped.values()) == 1_002 - len(seen.rows)
    assert dropped.keys() <= {
        "disk_full",
        "disk_half_full",
    }  # the latter from the next look at the disk on
    assert len(seen.rows) < 100
    assert seen.event("rl.run.end").attributes["rl.run.status"] == "failed"


def test_a_flush_for_which_a_full_disk_has_no_room_is_not_a_lost_record(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path) as run:
        run.log({"a": 1.0}, step=1)
        with largest_file(10):
            run.flush(timeout_s=0)
        assert run._recorder.drops.counts == {}
        run.finish()

    (seen,) = seen_in(tmp_path)
    assert (seen.steps, [event.name for event in seen.events]) == ([1], ["rl.run.end"])


def test_a_record_above_64_mib_is_dropped(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        run.append(2, b"x" * ((64 << 20) + 1))
        run.log({"a": 1.0}, step=1)
        run.finish()

    (seen,) = seen_in(tmp_path)
    assert seen.steps == [1]
    assert seen.event("rl.dropped").body == {"too_large": 1}


def test_when_the_folder_is_deleted_a_new_one_is_begun_within_a_second(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_in(tmp_path) as run:
        run.log({"a": 1.0}, step=1)
        shutil.rmtree(tmp_path / run.id)
        run._recorder._appender._check_again = 0  # a second later
        run.log({"a": 2.0}, step=2)
        run.finish()

    (seen,) = seen_in(tmp_path)
    assert [(row.step, row.seq) for row in seen.rows] == [(2, 1)]
    assert seen.event("rl.run.end").attributes == {
        "rl.run.status": "finished",
        "rl.seq": 1,
        "rl.event.seq": 1,
    }
    assert "was moved or deleted; continuing in a new folder" in capsys.readouterr().err


@pytest.mark.parametrize("checks", [True, False], ids=["within a second", "later"])
def test_of_a_folder_that_is_moved_no_row_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], checks: bool
) -> None:
    with run_in(tmp_path / "old", {"OTEL_BRIDGE_SEGMENT_BYTES": "4096"}) as run:
        folder = tmp_path / "old" / run.id
        place = tmp_path / "new" / run.id
        run.log({"a": 1.0}, step=1)
        place.parent.mkdir()
        folder.rename(place)
        for step in range(2, 102):  # more than a segment
            if checks:
                run._recorder._appender._check_again = 0  # a second later
            run.log({"a": 1.0}, step=step)
        assert run._recorder.drops.counts == {}
        run.finish()

    (moved,) = seen_in(tmp_path / "new")
    (seen,) = seen_in(tmp_path / "old")
    assert moved.steps + seen.steps == list(range(1, 102))
    assert seen.event("rl.run.end").attributes["rl.run.status"] == "finished"
    line = f"otel-bridge: {folder} was moved or deleted; continuing in a new folder"
    assert capsys.readouterr().err.splitlines().count(line) == 1


def test_a_folder_that_was_moved_before_the_end_has_its_end_in_a_new_one(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path / "old") as run:
        run.log({"a": 1.0}, step=1)
        (tmp_path / "old").rename(tmp_path / "new")
        run.finish()

    (moved,) = seen_in(tmp_path / "new")
    (seen,) = seen_in(tmp_path / "old")
    assert (moved.steps, [event.name for event in seen.events]) == ([1], ["rl.run.end"])


def test_when_the_folder_cannot_be_made_again_rows_are_dropped_and_nothing_raises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "runs"
    with run_in(base) as run:
        shutil.rmtree(base)
        base.write_text("")
        run._recorder._appender._check_again = 0
        run.log({"a": 1.0}, step=1)
        run.log({"a": 1.0}, step=2)
        assert run._recorder.drops.counts == {"not_written": 2}
        run.finish(timeout_s=0)


def test_at_the_limit_of_the_directory_rows_are_dropped_and_the_end_is_still_said(
    tmp_path: Path,
) -> None:
    with run_in(tmp_path, {"OTEL_BRIDGE_MAX_BYTES": "20k"}) as run:
        run.log({f"k{number}": 0.5 for number in range(1_000)}, step=1)
        run._recorder._appender._check_again = 0
        run.log({"a": 1.0}, step=2)
        run.finish()

    (seen,) = seen_in(tmp_path)
    assert seen.steps == [1]
    assert [event.name for event in seen.events] == ["rl.dropped", "rl.run.end"]
    assert seen.event("rl.dropped").body == {"directory_full": 1}


def test_the_limit_of_the_directory_holds_however_fast_rows_come(
    tmp_path: Path,
) -> None:
    limit = 300_000
    with run_in(tmp_path, {"OTEL_BRIDGE_MAX_BYTES": str(limit)}) as run:
        for step in range(2_000):
            run.log({f"k{number}": 0.5 for number in range(100)}, step=step)
        size_bytes = sum(
            segment.size_bytes for segment in RunFolder(tmp_path, run.id).segments()
        )
        run.finish()

    (seen,) = seen_in(tmp_path)
    given = [event.body for event in seen.events if event.name == "rl.dropped"]
    assert seen.steps == list(range(len(seen.steps)))
    assert limit - 20_000 < size_bytes < limit + 5_000
    assert given[-1] == {
        "directory_full": 2_000 - len(seen.steps)
    }  # counts of the whole run so far


def test_where_half_of_the_free_disk_is_the_limit_that_is_what_drops_are_counted_as(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Disk:
        f_bavail, f_frsize = 1, 20_000

    with run_in(tmp_path) as run:
        run.log({f"k{number}": 0.5 for number in range(1_000)}, step=1)
        monkeypatch.setattr("otel_bridge.journal.quota.os.statvfs", lambda _: Disk)
        run._recorder._appender._quota._count_again = (
            run._recorder._appender._check_again
        ) = 0
        run.log({"a": 1.0}, step=2)
        run.finish()

    (seen,) = seen_in(tmp_path)
    assert (seen.steps, seen.event("rl.dropped").body) == ([1], {"disk_half_full": 1})


def test_a_folder_of_a_newer_version_is_an_error_at_init(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        pass
    (tmp_path / run.id / "folder.json").write_text('{"format": 99}')

    with (
        environment_of(held(tmp_path)),
        pytest.raises(ConfigError, match="upgrade otel-bridge"),
    ):
        otel_bridge.init("gsm8k", "ppo")


def test_drops_are_said_once_a_minute_with_their_meaning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_in(tmp_path) as run:
        run.log({"a": "text", "b": None, "c": 1.0}, step=1)
        for _ in range(3):
            run._recorder._appender._check_again = 0
            run.log({"a": "text", "c": 1.0}, step=2)
        said = capsys.readouterr().err

    assert said == (
        "otel-bridge: dropped 1: texts: log them as Text(…), Markdown(…) or Html(…), in a Table, the config or "
        "summary(), or in a rollout [text], first 'a'\n"
        "otel-bridge:   dropped 1: values that are None [none], first 'b'\n"
    )


def test_a_broken_stderr_is_not_a_reason_to_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def write(self, text: str) -> int:
            raise OSError

    monkeypatch.setattr("sys.stderr", Broken())

    with run_in(tmp_path, {"OTEL_BRIDGE_QUIET": "0"}) as run:
        run.log({"a": 1.0}, step=1)

    assert [seen.steps for seen in seen_in(tmp_path)] == [[1]]


def test_the_meaning_of_a_drop_names_no_package_because_captured_programs_use_another() -> (
    None
):
    assert [
        reason
        for reason, meaning in MEANING.items()
        if "otel_bridge." in meaning or "log_config" in meaning
    ] == []


def test_no_call_raises_when_no_file_can_be_opened(tmp_path: Path) -> None:
    script = """
    import contextlib, os, resource
    import otel_bridge
    run = otel_bridge.init("gsm8k", "ppo")
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with contextlib.suppress(OSError):
        while True:
            os.open("/dev/null", os.O_RDONLY)
    with run.rollout(step=1) as rollout:
        rollout.reward = 1.0
        with rollout.tool("search") as call:
            call.result = "none"
    run.log_rollouts([{"messages": "2 + 2?"}], step=1)
    run.log_generations(["2 + 2?"], ["4"], step=1)
    run.log_reward("r1", 1.0)
    run.train_on(1, ["r1"])
    run.summary(best=0.5)
    run.log({"loss": 0.5})
    run.finish(timeout_s=0)
    """

    done = run_script(script, held(tmp_path))

    (process,) = seen_in(tmp_path)
    assert (done.returncode, [row.values for row in process.rows]) == (
        0,
        [{"loss": 0.5}],
    )
    assert "dropped 6: records that otel-bridge failed on" in done.stderr


def test_a_thread_that_outlives_the_main_thread_opens_its_first_rollout(
    tmp_path: Path,
) -> None:
    script = """
    import threading
    import otel_bridge
    run = otel_bridge.init("gsm8k", "ppo")
    def explore():
        threading.main_thread().join()
        with run.rollout(step=1) as rollout:
            rollout.reward = 1.0
        print(len(threading.enumerate()))
    threading.Thread(target=explore).start()
    """

    done = run_script(script, held(tmp_path))

    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


def test_counts_of_drops_are_written_each_second_so_that_a_kill_hardly_loses_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_in(tmp_path) as run:
        start_ns = time.time_ns()
        for second, value in ((2, "four"), (4, {}), (6, 1j), (8, 1.0)):
            monkeypatch.setattr(
                "otel_bridge.emit.recording.recorder.time_ns",
                lambda second=second: start_ns + second * 10**9,
            )
            run.log({"answer": value, "loss": 0.5})
        (process,) = seen_in(tmp_path)

    dropped = [event.body for event in process.events if event.name == "rl.dropped"]
    assert dropped == [{"text": 1}, {"text": 1, "complex": 1}]
