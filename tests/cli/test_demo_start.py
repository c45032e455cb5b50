"""``otel-bridge demo`` where the bridge cannot start."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_runs import environment, otel_bridge

pytestmark = pytest.mark.slow
BROKEN = """
import importlib, os, sys
if sys.argv[0] == "otel-bridge":  # the bridge; a command has its path there
    raise ImportError("no SQLite on this machine")
sys.path.remove(os.path.dirname(__file__))
del sys.modules["_sqlite3"]
sys.modules["_sqlite3"] = importlib.import_module("_sqlite3")
"""


def test_a_bridge_that_does_not_start_is_said_with_the_last_line_of_its_log(tmp_path: Path) -> None:
    broken = tmp_path / "site"
    broken.mkdir()
    (broken / "_sqlite3.py").write_text(BROKEN)
    env = environment(tmp_path, PYTHONPATH=str(broken))

    done = otel_bridge("demo", "--steps", "3", "--exporters", "file", cwd=tmp_path, env=env)

    (log,) = tmp_path.glob("otel-bridge-demo/runs/*/bridge.log")
    said = f"Error: the bridge does not start: ImportError: no SQLite on this machine (the end of {log})"
    assert (done.returncode, done.stderr.strip().splitlines()[-1]) == (1, said)
