"""Disks that are full or read-only, files that are damaged or of a newer version, clocks that step back."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trackio_store
from e2e_jobs import (
    acked,
    bridges,
    command,
    ended,
    environment,
    lines,
    no_bridge_left,
    only_folder,
    rows,
    run,
    script,
    start,
    status,
    until,
)

from otel_bridge.exporter import RunInfo
from otel_bridge.journal.report import read_report
from otel_bridge.journal.segment import SegmentWriter, read_segment
from otel_bridge.records import run_id_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

# Logs what it is told to on its standard input, "<first> <count> <values in a row>" a line, and says when it has.
TOLD = """
acks = Acks(sys.argv[1])
run = otel_bridge.init("faults", "told")
print("begun", flush=True)
for line in sys.stdin:
    first, count, width = map(int, line.split())
    more = {f"k{number}": 0.5 for number in range(width)}
    for step in range(first, first + count):
        acks.log(run, {"loss": step / 2, **more}, step)
    print("logged" if width or run.flush(60) else "not flushed", flush=True)
run.finish()
"""


class Told:
    """A trainer that logs when it is told to."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self.acks = folder / "acks"
        self._job = start(script(folder / "train.py", TOLD, acknowledging=True), env, str(self.acks))
        assert self._say() == b"begun\n", self._job.communicate()

    def log(self, first: int, count: int, *, width: int = 0) -> None:
        """Log and, where the rows are narrow, flush."""
        assert self._job.stdin is not None
        self._job.stdin.write(b"%d %d %d\n" % (first, count, width))
        self._job.stdin.flush()
        assert self._say() == b"logged\n", self._job.communicate()

    def end(self) -> str:
        """End; return what was said on stderr."""
        _, errors = self._job.communicate(timeout=90)
        assert self._job.returncode == 0, errors
        return errors.decode()

    def _say(self) -> bytes:
        assert self._job.stdout is not None
        return self._job.stdout.readline()


@contextlib.contextmanager
def small_disk(folder: Path, *options: str) -> Iterator[Path]:
    """Mount a small disk."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", folder], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_drops_what_does_not_fit_and_both_sides_go_on_when_there_is_room_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "-o", "size=8m") as disk, no_bridge_left(tmp_path):
        base, filler = disk / "runs", disk / "filler"
        trainer = Told(tmp_path, environment(base))
        trainer.log(0, 50)
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        trainer.log(50, 100, width=1000)
        time.sleep(1.1)  # the limit is counted once a second
        trainer.log(150, 100, width=10)
        filler.unlink()
        time.sleep(1.1)
        trainer.log(250, 50)
        said = trainer.end()
        until(lambda: ended(base) and not bridges(base))
        got, report, ends = rows(base), read_report(only_folder(base)), status(base)

    assert report is not None
    assert ends == ["finished"]
    dropped = report.drops.get("disk_full", 0) + report.drops.get("directory_full", 0)
    assert got == sorted(set(got))
    assert set(got) >= {*range(50), *range(250, 300)}
    assert (dropped > 100, len(got) + dropped) == (True, 300)
    assert "dropped: " in said


def test_a_bridge_whose_disk_is_full_delivers_once_there_is_room(tmp_path: Path) -> None:
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
        run(code, {**env, "OTEL_BRIDGE_HOLD": "1"}, str(acks))
        start_limited = f"""
        import os, resource, sys
        resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, resource.RLIM_INFINITY))
        from pathlib import Path
        from otel_bridge.emit.launch import start_bridge
        from otel_bridge.journal.folder import run_folders
        start_bridge(run_folders(Path({str(base)!r}))[0], os.environ)
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(start_limited)], env=env, check=True)
        until(lambda: "ledger.sqlite: " in _log(base))
        (bridge,) = bridges(base)
        before = rows(base)

        resource.prlimit(bridge, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        until(lambda: ended(base) and not bridges(base))

    assert len(before) < 20_000
    assert rows(base) == acked(acks) == list(range(20_000))
    assert status(base) == ["finished"]


def _log(base: Path) -> str:
    return "".join(file.read_text() for file in base.glob("*/bridge.log"))


def test_a_damaged_segment_costs_the_rows_that_stood_there_and_that_is_counted(tmp_path: Path) -> None:
    base = tmp_path / "runs"
    with no_bridge_left(tmp_path):
        trainer = Told(tmp_path, environment(base))
        trainer.log(0, 100)
        (bridge,) = bridges(base)
        os.kill(bridge, signal.SIGSTOP)
        (segment,) = only_folder(base).segments()
        trainer.log(100, 100, width=2)
        with segment.path.open("r+b") as file:
            file.seek(segment.size_bytes + (segment.path.stat().st_size - segment.size_bytes) // 2)
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


@pytest.mark.parametrize("when", ["while it is in use", "between two bridges"])
def test_a_damaged_ledger_is_set_aside_and_what_the_segments_hold_arrives_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    for name, value in trackio_store.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    base = tmp_path / "runs"
    project = f"faults{when.partition(' ')[0]}"
    env = environment(base, "trackio", OTEL_BRIDGE_END_GRACE_S="30", **trackio_store.ENVIRONMENT)
    with no_bridge_left(tmp_path):
        code = TOLD.replace('"faults", "told"', f'"{project}", "told"')
        (tmp_path / "job").mkdir()
        monkeypatch.setattr(sys.modules[__name__], "TOLD", code)
        trainer = Told(tmp_path / "job", env)
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

    info = RunInfo(run_id_of(project, "told"), project, "told", tmp_path)
    assert [one.step for one in trackio_store.held(info).scalars] == list(range(200))
    assert len(list(only_folder(base).path.glob("ledger.sqlite.damaged-*[0-9]"))) == 1
    assert "the ledger is damaged" in _log(base) or "was damaged; it lies at" in _log(base)


LOGS = """
import otel_bridge
run = otel_bridge.init("faults", "versions")
for step in range(20):
    run.log({"loss": step / 2}, step=step)
run.finish(timeout_s=3)
"""


def test_a_folder_of_a_newer_version_is_an_error_at_init_and_a_line_of_every_command(tmp_path: Path) -> None:
    code, base = script(tmp_path / "train.py", LOGS), tmp_path / "runs"
    run(code, environment(base, OTEL_BRIDGE_HOLD="1"))
    folder = only_folder(base)
    folder.format_path.write_text('{"format": 99}')

    done = run(code, environment(base))
    drained = command("drain", base, env=environment(base), cwd=tmp_path)

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"otel_bridge.errors.ConfigError: {folder.path} has format 99, this version knows up to 1; upgrade otel-bridge"
    )
    assert drained.returncode == 1
    assert "upgrade otel-bridge" in drained.stdout + drained.stderr
    assert bridges(base) == []


def test_a_ledger_of_a_newer_version_keeps_the_rows_and_says_what_to_do(tmp_path: Path) -> None:
    code, base = script(tmp_path / "train.py", LOGS), tmp_path / "runs"
    env = {**environment(base), "OTEL_BRIDGE_QUIET": "0"}
    with no_bridge_left(tmp_path):
        run(code, env)
        until(lambda: ended(base) and not bridges(base))
        with contextlib.closing(sqlite3.connect(only_folder(base).ledger_path)) as ledger:
            ledger.execute("PRAGMA user_version = 99")

        done = run(code, env)
        drained = command("drain", base, env=env, cwd=tmp_path)
        with contextlib.closing(sqlite3.connect(only_folder(base).ledger_path)) as ledger:
            ledger.execute("PRAGMA user_version = 1")
        again = command("drain", base, env=env, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert f"deliver it with: otel-bridge drain {base}" in done.stderr.splitlines()[-1]
    assert (drained.returncode, again.returncode) == (1, 0)
    assert "upgrade otel-bridge" in drained.stdout
    assert rows(base) == [*range(20), *range(20)]


def test_a_segment_of_a_newer_version_is_left_as_it_is_and_keeps_no_other_from_being_read(tmp_path: Path) -> None:
    code, base = script(tmp_path / "train.py", LOGS), tmp_path / "runs"
    with no_bridge_left(tmp_path):
        run(code, environment(base, OTEL_BRIDGE_HOLD="1"))
        folder = only_folder(base)
        (segment,) = folder.segments()
        header, _ = read_segment(segment.path, 0, limit_bytes=1, final=False)
        assert header is not None
        newer = dataclasses.replace(header, instance_id="0123456789abcdef", format=99)
        writer = SegmentWriter(folder, newer)
        writer.close()

        drained = command("drain", base, env=environment(base), cwd=tmp_path)

    assert rows(base) == list(range(20))
    assert [one.instance_id for one in folder.segments()] == ["0123456789abcdef"]
    assert drained.returncode == 1
    assert "a newer version wrote the segments of 0123456789abcdef; upgrade otel-bridge" in drained.stdout


def test_a_directory_that_is_read_only_is_an_error_at_init_that_says_what_to_set(tmp_path: Path) -> None:
    code = script(tmp_path / "train.py", LOGS)
    with small_disk(tmp_path / "disk", "-o", "size=1m,ro") as disk:
        done = run(code, environment(disk / "runs"))

    assert done.returncode == 1
    assert "ConfigError" in done.stderr.splitlines()[-1]
    assert "set OTEL_BRIDGE_DIR to a writable folder" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0, -0.5])
def test_a_clock_that_steps_keeps_rows_in_order_and_flush_quick(tmp_path: Path, step_s: float) -> None:
    code = script(
        tmp_path / "train.py",
        f"""
        import sys, time
        real, offset = time.time_ns, 0
        time.time_ns = lambda: real() + offset
        import otel_bridge
        run = otel_bridge.init("faults", "clock")
        messages = [{{"role": "user", "content": "2 + 2?"}}, {{"role": "assistant", "content": "4"}}]
        for step in range(100):
            run.log({{"loss": step / 2}}, step=step)
            run.log_rollouts([otel_bridge.Rollout(messages, reward=step / 2, id=f"r{{step}}")], step=step)
            if step == 49:
                assert run.flush(30)
                offset = int({step_s} * 1e9)
        began = time.monotonic()
        assert run.flush(30)
        assert time.monotonic() - began < 15
        run.finish()
        """,
    )
    base = tmp_path / "runs"
    with no_bridge_left(tmp_path):
        done = run(code, environment(base))
        until(lambda: ended(base) and not bridges(base))

    found = [line for line in lines(base) if line["kind"] == "row" and "loss" in line["values"]]  # type: ignore[operator]
    times = [int(str(line["time_unix_ns"])) for line in found]
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in found] == list(range(100))
    assert times == sorted(set(times))
    rewards = [float(str(line["reward"])) for line in lines(base) if line["kind"] == "rollout"]
    assert rewards == [step / 2 for step in range(100)]
    assert status(base) == ["finished"]


JOB = """
import sys, otel_bridge
role = sys.argv[1]
run = otel_bridge.init("faults", "held", role=role, config={"lr": 0.1, "role": role})
for step in range(40):
    run.log({"loss": step / 2, "nan": float("nan"), "weights": [1.0, 2.0, 4.0]}, step=step)
    batch = []
    for sample in range(6):
        messages = [{"role": "user", "content": f"{sample}?"}, {"role": "assistant", "content": f"{step}"}]
        name, group = f"{role}-{step}-{sample}", f"g{sample % 2}"
        batch.append(otel_bridge.Rollout(messages, reward=sample / 2, id=name, group=group))
    run.log_rollouts(batch, step=step)
    run.log_reward(f"{role}-{step}-0", 9.0, name="judge")
run.log_config({"batch": 8})
run.finish(status="failed" if role == "explorer" else "finished")
"""


def test_a_run_held_and_drained_reads_like_a_live_one(tmp_path: Path) -> None:
    code = script(tmp_path / "train.py", JOB)
    live, held = tmp_path / "live", tmp_path / "held"
    with no_bridge_left(tmp_path):
        for base, hold in ((live, "0"), (held, "1")):
            env = environment(base, OTEL_BRIDGE_HOLD=hold, OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP="4")
            jobs = [start(code, env, role) for role in ("trainer", "explorer")]
            for job in jobs:
                _, errors = job.communicate(timeout=90)
                assert job.returncode == 0, errors
        until(lambda: ended(live) and not bridges(live))
        assert (bridges(held), lines(held)) == ([], [])

        drained = command("drain", held, env=environment(held, OTEL_BRIDGE_MAX_ROLLOUTS_PER_STEP="4"), cwd=tmp_path)

    assert drained.returncode == 0, drained.stdout + drained.stderr
    assert _records(held) == _records(live)
    counts = {kind: len(found) for (_, kind), found in _records(held).items() if kind != "end"}
    assert counts
    assert sum(len(found) for (_, kind), found in _records(held).items() if kind == "rollout") == 2 * 40 * 4


def _records(base: Path) -> dict[tuple[object, object], list[dict[str, object]]]:
    """What was delivered, by role and kind, in order, less what differs from one run of a script to the next."""
    found: dict[tuple[object, object], list[dict[str, object]]] = {}
    for line in lines(base):
        if line["kind"] == "config":
            continue  # written again at each open; the last of each role is compared below
        kept = {key: value for key, value in line.items() if not key.endswith("_unix_ns") and key != "position"}
        if line["kind"] != "rollout":
            kept.pop("id", None)
        else:
            kept["spans"] = [
                {key: value for key, value in span.items() if key not in {"id", "parent_id"} and "_unix_ns" not in key}
                for span in line["spans"]  # type: ignore[attr-defined]
            ]
        found.setdefault((line.get("role"), line["kind"]), []).append(kept)
    for line in lines(base):
        if line["kind"] == "config":
            found[line["role"], "config"] = [line]
    ends = [key for key in found if key[1] == "end"]
    for key in ends:
        found[key] = found[key][-1:]
    return found


def test_on_a_network_file_system_the_run_folders_are_elsewhere_and_that_is_said(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 0 0:1 / / rw - ext4 /dev/sda rw\n2 1 0:2 / {tmp_path} rw - nfs4 server:/home rw\n")
    code = script(
        tmp_path / "train.py",
        f"""
        from pathlib import Path
        import otel_bridge.journal.netfs
        otel_bridge.journal.netfs._MOUNTINFO = Path({str(mounts)!r})
        """
        + LOGS.replace("\n", "\n        "),
    )
    env = environment(Path("/nowhere"), OTEL_BRIDGE_QUIET="0")
    env.pop("OTEL_BRIDGE_DIR")
    local = Path(f"/var/tmp/otel-bridge-e2e-{os.getpid()}")
    with no_bridge_left(local):
        done = run(code, {**env, "XDG_STATE_HOME": str(local)})
        until(lambda: ended(next((local / "otel-bridge").iterdir())))
        (base,) = (local / "otel-bridge").iterdir()
        got = rows(base)
        subprocess.run(["rm", "-rf", local], check=True)

    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/.otel-bridge is on nfs4, so run folders are in {base}" in done.stderr.splitlines()[0]
    assert got == list(range(20))
