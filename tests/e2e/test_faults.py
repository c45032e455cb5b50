"""Disks that are full or read-only, files that are damaged."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from otel_bridge.journal.report import read_report
from otel_bridge.records import run_id_of
from support.trackers import trackio_store
from support.trainers.e2e_jobs import (
    LOGS,
    acked,
    bridges,
    ended,
    environment,
    no_bridge_left,
    only_folder,
    rows,
    run,
    script,
    start,
    status,
    until,
)
from support.waiting import HANG_S

pytestmark = pytest.mark.slow

# Logs what it is asked to on its standard input, "<first> <count> <values in a row>" a line, and says when it has.
EXPECTED_LINES = """
acks = Acks(sys.argv[1])
run = otel_bridge.init("faults", "given")
print("begun", flush=True)
for line in sys.stdin:
    first, count, width = map(int, line.split())
    more = {f"k{number}": 0.5 for number in range(width)}
    for step in range(first, first + count):
        acks.log(run, {"loss": step / 2, **more}, step)
    print("logged" if width or run.flush(300) else "not flushed", flush=True)
run.finish()
"""


class ExpectedLines:
    """A trainer that logs when it is asked to."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.acks = folder / "acks"
        self._job = start(
            script(folder / "train.py", EXPECTED_LINES, acknowledging=True),
            env,
            str(self.acks),
        )
        assert self._say() == b"begun\n", self._job.communicate()

    def log(self, first: int, count: int, *, width: int = 0) -> None:
        """Log and, where the rows are narrow, flush."""
        assert self._job.stdin is not None
        self._job.stdin.write(b"%d %d %d\n" % (first, count, width))
        self._job.stdin.flush()
        assert self._say() == b"logged\n", self._job.communicate()

    def end(self) -> str:
        """End; return what was said on stderr."""
        _, errors = self._job.communicate(timeout=HANG_S)
        assert self._job.returncode == 0, errors
        return errors.decode()

    def _say(self) -> bytes:
        assert self._job.stdout is not None
        return self._job.stdout.readline()


@contextlib.contextmanager
def small_disk(folder: Path, *options: str) -> Iterator[Path]:
    """Mount a small disk."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", *options, "tmpfs", folder],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_drops_what_does_not_fit_and_both_sides_go_on_when_there_is_room_again(
    tmp_path: Path,
) -> None:
    with (
        small_disk(tmp_path / "disk", "-o", "size=8m") as disk,
        no_bridge_left(tmp_path),
    ):
        base, filler = disk / "runs", disk / "filler"
        trainer = ExpectedLines(tmp_path, environment(base))
        trainer.log(0, 50)
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        trainer.log(50, 100, width=1000)
        time.sleep(1.1)  # the limit is counted once a second
        trainer.log(150, 100, width=10)
        filler.unlink()
        probes = count(250)

        def goes_on() -> bool:  # on a busy machine the limit is counted less often
            trainer.log(next(probes), 1)
            return any(step >= 250 for step in rows(base))

        until(goes_on)
        first = next(probes)
        trainer.log(first, 50)
        said = trainer.end()
        until(lambda: ended(base) and not bridges(base))
        got, report, ends = rows(base), read_report(only_folder(base)), status(base)

    assert report is not None
    assert ends == ["finished"]
    dropped = sum(
        report.drops.get(reason, 0)
        for reason in ("disk_full", "directory_full", "disk_half_full")
    )
    assert got == sorted(set(got))
    assert set(got) >= {*range(50), *range(first, first + 50)}
    assert (dropped > 100, len(got) + dropped) == (True, first + 50)
    assert "dropped " in said


def test_a_bridge_whose_disk_is_full_delivers_once_there_is_room(
    tmp_path: Path,
) -> None:
    code = script(
        tmp_path / "train.py",
        """
        acks = Acks(sys.argv[1])
        run = otel_bridge.init("faults", "ledger")
        for step in range(20_000):
            acks.log(run, {"loss": step / 2, "lr": 1e-3, "text/length": 7.0}, step)
        """,
        acknowledging=True,
    )
    base, acks = tmp_path / "runs", tmp_path / "acks"
    env = environment(base)
    with no_bridge_left(tmp_path):
        run(code, {**env, "OTEL_BRIDGE_OFFLINE": "1"}, str(acks))
        start_limited = f"""
        import os, resource, sys
        resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, resource.RLIM_INFINITY))
        from pathlib import Path
        from otel_bridge.emit.bridge_process.spawn import start_bridge
        from otel_bridge.journal.folder import run_folders
        start_bridge(run_folders(Path({str(base)!r}))[0], os.environ)
        """
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(start_limited)], env=env, check=True
        )
        until(lambda: "ledger.sqlite: " in _log(base))
        (bridge,) = bridges(base)
        before = rows(base)

        resource.prlimit(
            bridge,
            resource.RLIMIT_FSIZE,
            (resource.RLIM_INFINITY, resource.RLIM_INFINITY),
        )
        until(lambda: ended(base) and not bridges(base))

    assert len(before) < 20_000
    assert rows(base) == acked(acks) == list(range(20_000))
    assert status(base) == ["finished"]


def _log(base: Path) -> str:
    return "".join(file.read_text() for file in base.glob("*/bridge.log"))


def test_a_damaged_segment_costs_the_rows_that_stood_there_and_that_is_counted(
    tmp_path: Path,
) -> None:
    base = tmp_path / "runs"
    with no_bridge_left(tmp_path):
        trainer = ExpectedLines(tmp_path, environment(base))
        trainer.log(0, 100)
        (bridge,) = bridges(base)
        os.kill(bridge, signal.SIGSTOP)
        (segment,) = only_folder(base).segments()
        trainer.log(100, 100, width=2)
        with segment.path.open("r+b") as file:
            file.seek(
                segment.size_bytes
                + (segment.path.stat().st_size - segment.size_bytes) // 2
            )
            file.write(os.urandom(40))
        os.kill(bridge, signal.SIGCONT)
        trainer.log(200, 100)
        trainer.end()
        until(lambda: ended(base) and not bridges(base))

    got, report = rows(base), read_report(only_folder(base))
    assert report is not None
    assert got == sorted(set(got))
    assert 1 <= 300 - len(got) <= 2
    assert set(got) >= {*range(140), *range(160, 300)}
    assert (report.missing_rows, report.drops) == (300 - len(got), {"segment_gaps": 1})
    assert "1 unreadable stretches in the segments" in _log(base)
    assert status(base) == ["finished"]


@pytest.mark.long
@pytest.mark.parametrize("when", ["while it is in use", "between two bridges"])
def test_a_damaged_ledger_is_set_aside_and_what_the_segments_hold_arrives_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    for name, value in trackio_store.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    base = tmp_path / "runs"
    project = f"faults{when.partition(' ')[0]}"
    env = environment(
        base, "trackio", OTEL_BRIDGE_END_GRACE_S="30", **trackio_store.ENVIRONMENT
    )
    with no_bridge_left(tmp_path):
        code = EXPECTED_LINES.replace('"faults", "given"', f'"{project}", "given"')
        (tmp_path / "job").mkdir()
        monkeypatch.setattr(sys.modules[__name__], "EXPECTED_LINES", code)
        trainer = ExpectedLines(tmp_path / "job", env)
        trainer.log(0, 100)
        (bridge,) = bridges(base)
        ledger = only_folder(base).ledger_path
        if when == "between two bridges":
            os.kill(bridge, signal.SIGKILL)
            until(lambda: not bridges(base))
        for path in (ledger, Path(f"{ledger}-wal")):
            with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
                file.write(os.urandom(path.stat().st_size))
        trainer.log(100, 100)
        trainer.end()
        until(lambda: ended(base) and not bridges(base))

    info = RunInfo(run_id_of(project, "given"), project, "given", tmp_path)
    assert [one.step for one in trackio_store.held(info).scalars] == list(range(200))
    assert len(list(only_folder(base).path.glob("ledger.sqlite.damaged-*[0-9]"))) == 1
    assert "the ledger is damaged" in _log(
        base
    ) or "was damaged and renamed to" in _log(base)


def test_a_directory_that_is_read_only_is_an_error_at_init_that_says_what_to_set(
    tmp_path: Path,
) -> None:
    code = script(tmp_path / "train.py", LOGS)
    with small_disk(tmp_path / "disk", "-o", "size=1m,ro") as disk:
        done = run(code, environment(disk / "runs"))

    assert done.returncode == 1
    assert "ConfigError" in done.stderr.splitlines()[-1]
    assert "set OTEL_BRIDGE_DIR to a writable folder" in done.stderr.splitlines()[-1]
