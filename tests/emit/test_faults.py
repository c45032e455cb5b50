from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from emit_samples import environment_of, held, run_in, seen_in

import otel_bridge
from otel_bridge.errors import ConfigError


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Let no file grow beyond *size_bytes*: a write then fails as on a full disk."""
    import signal

    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_folder_that_cannot_be_made_is_an_error_at_init(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with environment_of(held(tmp_path / "file" / "runs")), pytest.raises(ConfigError, match="OTEL_BRIDGE_DIR"):
        otel_bridge.init("p", "n")


def test_rows_that_a_full_disk_has_no_room_for_are_dropped_and_the_rest_stays_whole(tmp_path: Path) -> None:
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


def test_a_flush_for_which_a_full_disk_has_no_room_is_no_lost_record(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        run.log({"a": 1.0}, step=1)
        with largest_file(10):
            run.flush(timeout_s=0)
        assert run._sink.drops.counts == {}
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
        run._sink._check_again = 0  # a second later
        run.log({"a": 2.0}, step=2)
        run.finish()

    (seen,) = seen_in(tmp_path)
    assert [(row.step, row.seq) for row in seen.rows] == [(2, 1)]
    assert seen.event("rl.run.end").attributes == {"rl.run.status": "finished", "rl.seq": 1, "rl.event.seq": 1}
    assert "was deleted; going on in a new folder" in capsys.readouterr().err


def test_when_the_folder_cannot_be_made_again_rows_are_dropped_and_nothing_raises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tmp_path / "runs"
    with run_in(base) as run:
        shutil.rmtree(base)
        base.write_text("")
        run._sink._check_again = 0
        run.log({"a": 1.0}, step=1)
        run.log({"a": 1.0}, step=2)
        assert run._sink.drops.counts == {"not_written": 2}
        run.finish(timeout_s=0)


def test_at_the_limit_of_the_directory_rows_are_dropped_and_the_end_is_still_said(tmp_path: Path) -> None:
    with run_in(tmp_path, {"OTEL_BRIDGE_MAX_BYTES": "20k"}) as run:
        run.log({f"k{number}": 0.5 for number in range(1_000)}, step=1)
        run._sink._check_again = 0
        run.log({"a": 1.0}, step=2)
        run.finish()

    (seen,) = seen_in(tmp_path)
    assert seen.steps == [1]
    assert [event.name for event in seen.events] == ["rl.dropped", "rl.run.end"]
    assert seen.event("rl.dropped").body == {"directory_full": 1}


def test_a_folder_of_a_newer_version_is_an_error_at_init(tmp_path: Path) -> None:
    with run_in(tmp_path) as run:
        pass
    (tmp_path / run.id / "folder.json").write_text('{"format": 99}')

    with environment_of(held(tmp_path)), pytest.raises(ConfigError, match="upgrade otel-bridge"):
        otel_bridge.init("gsm8k", "ppo")


def test_drops_are_said_once_a_minute_with_their_meaning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with run_in(tmp_path) as run:
        run.log({"a": "text", "b": None, "c": 1.0}, step=1)
        for _ in range(3):
            run._sink._check_again = 0
            run.log({"a": "text", "c": 1.0}, step=2)
        said = capsys.readouterr().err

    assert said == (
        "otel-bridge: dropped: 1 texts: put them into log_config(), or messages into a rollout [text]; "
        "1 values that are None [none]\n"
    )


def test_a_broken_stderr_is_no_reason_to_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def write(self, text: str) -> int:
            raise OSError

    monkeypatch.setattr("sys.stderr", Broken())

    with run_in(tmp_path, {"OTEL_BRIDGE_QUIET": "0"}) as run:
        run.log({"a": 1.0}, step=1)

    assert [seen.steps for seen in seen_in(tmp_path)] == [[1]]
