"""Media from a program to the files, over kills and over OTLP: each there once, byte for byte."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from support.collector.service_process import service
from support.trainers.e2e_jobs import (
    ended,
    environment,
    lines,
    no_bridge_left,
    only_folder,
    script,
    start,
    until,
)
from support.trainers.e2e_jobs import run as finished
from support.waiting import HANG_S

pytestmark = pytest.mark.slow
PARTS = 3 << 20
JOB = f"""
import os, random, signal, sys
import otel_bridge

run = otel_bridge.init("media", "job", role="trainer")
noise = random.Random(7)
for step in range(40):
    run.log({{"loss": step / 2, "note": otel_bridge.Text(f"note {{step}}"),
             "table": otel_bridge.Table(["step", "square"], [[step, step**2]])}}, step=step)
    if step % 10 == 0:
        run.log({{"large": otel_bridge.Image(b"\\x89PNG\\r\\n\\x1a\\n" + noise.randbytes({PARTS}))}}, step=step)
if sys.argv[1:] == ["killed"]:
    os.kill(os.getpid(), signal.SIGKILL)
run.finish(timeout_s=60)
"""


def held(base: Path) -> Counter[tuple[object, ...]]:
    """Key, step and digest of every medium that the files hold; each file is what its name says."""
    found: Counter[tuple[object, ...]] = Counter()
    for line in lines(base):
        if line["kind"] != "media":
            continue
        (item,) = line["items"]  # type: ignore[misc]
        data = (only_folder(base).path / "file" / item["file"]).read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        assert item["file"].startswith(f"media/{digest}.")
        found[line["key"], line["step"], digest] += 1
    return found


@pytest.fixture
def expected(tmp_path: Path) -> Counter[tuple[object, ...]]:
    """What a job leaves that nothing disturbs."""
    base = tmp_path / "undisturbed"
    with no_bridge_left(base):
        finished(script(tmp_path / "job.py", JOB), environment(base))
        until(lambda: ended(base))
        found = held(base)
    assert (len(found), set(found.values())) == (84, {1})
    return found


def test_what_a_killed_program_logged_and_a_bridge_killed_four_times_delivered_is_there_once(
    tmp_path: Path, expected: Counter[tuple[object, ...]]
) -> None:
    base = tmp_path / "base"
    env = environment(base, OTEL_BRIDGE_POLL_S="0.01")
    job = start(
        script(tmp_path / "job.py", JOB), {**env, "OTEL_BRIDGE_OFFLINE": "1"}, "killed"
    )
    assert job.wait(HANG_S) == -signal.SIGKILL
    drain = [
        sys.executable,
        "-c",
        "import sys; from otel_bridge.cli import main; main(['drain', sys.argv[1]])",
        base,
    ]

    killed = [
        _killed_after(20 * number, [*map(str, drain)], env, base) for number in range(4)
    ]
    done = subprocess.run(
        drain, env=env, capture_output=True, text=True, timeout=HANG_S, check=False
    )

    assert killed[0]
    assert done.returncode == 0, done.stderr
    assert held(base) == expected
    assert json.loads(only_folder(base).report_path.read_bytes())["media"] == sum(
        expected.values()
    )
    status = [
        sys.executable,
        "-c",
        "import sys; from otel_bridge.cli import main; main(['status', sys.argv[1]])",
        base,
    ]
    shown = subprocess.run(
        [*map(str, status)],
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    assert f"{sum(expected.values())} media logged" in shown.stdout
    assert sorted(
        line["step"] for line in lines(base) if line["kind"] == "row"
    ) == list(range(40))


def _killed_after(
    count: int, drain: list[str], env: dict[str, str], base: Path
) -> bool:
    """Kill a bridge that has written more than *count* lines; returns whether it had more to do."""
    bridge = subprocess.Popen(
        drain, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until(lambda: len(lines(base)) > count or bridge.poll() is not None)
    bridge.kill()
    return bridge.wait(HANG_S) == -signal.SIGKILL


@pytest.mark.long
def test_media_that_otlp_forwards_are_those_of_a_local_bridge(
    tmp_path: Path, expected: Counter[tuple[object, ...]]
) -> None:
    with service(
        tmp_path, environment(tmp_path / "served"), "--dir", str(tmp_path / "served")
    ) as bridge:
        env = environment(
            tmp_path / "sender", "otlp",
            OTEL_EXPORTER_OTLP_ENDPOINT=bridge.http, OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        )  # fmt: skip
        with no_bridge_left(tmp_path / "sender"):
            finished(script(tmp_path / "job.py", JOB), env)
            until(lambda: sum(held(tmp_path / "served").values()) >= len(expected))

    assert held(tmp_path / "served") == expected
