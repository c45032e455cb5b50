"""The garbage collector of a process that serves."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_bridge.bridge.serving.process_limits import ALLOCATIONS, collect_less_often
from support.bridge.bridge_doubles import Process, run_folder


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


_BRIDGE = "from otel_bridge.bridge.main import main; main([sys.argv[1]])"
_DRAIN = "from otel_bridge.cli import main; main(['drain', '--folder', sys.argv[1]])"


@pytest.mark.parametrize("serve", [_BRIDGE, _DRAIN], ids=["bridge", "drain"])
def test_a_process_that_serves_collects_less_often(tmp_path: Path, serve: str) -> None:
    folder = run_folder(tmp_path)
    process = Process.start(folder, "file")
    process.log()
    process.end()
    said = "import atexit, gc, json, sys; gc.set_threshold(700, 11, 12)"
    code = f"{said}; atexit.register(lambda: print(json.dumps(gc.get_threshold()), file=sys.stderr)); {serve}"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    done = subprocess.run(
        [sys.executable, "-c", code, str(folder.path)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )

    assert json.loads(done.stderr.splitlines()[-1]) == [ALLOCATIONS, 11, 12], (
        done.stderr
    )


@pytest.mark.parametrize("asked", [0, 50_000])
def test_a_collector_that_is_off_or_runs_less_often_already_stays_as_it_is(
    asked: int,
) -> None:
    gc.set_threshold(asked)

    collect_less_often()

    assert gc.get_threshold()[0] == asked
