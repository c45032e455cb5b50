"""``drain`` beside a service: the service goes on delivering its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.collector.service_process import folder_of, service, written_rows
from support.trainers.command_runs import environment, otel_bridge
from support.trainers.e2e_jobs import until

pytestmark = pytest.mark.slow


def test_a_run_that_a_service_delivers_is_left_to_it(tmp_path: Path) -> None:
    env = environment(tmp_path)
    with service(tmp_path, env, "--exporters", "file") as served:
        assert served.send(1, 2) == 200
        until(lambda: written_rows(folder_of(tmp_path), "file") == 2)

        drained = otel_bridge(
            "drain",
            str(tmp_path / ".otel-bridge"),
            "--exporters",
            "file",
            env=env,
            cwd=tmp_path,
        )

        assert drained.returncode == 1
        assert f"(process {served.process.pid}) delivers this run" in drained.stdout
        assert served.send(3) == 200
        until(lambda: written_rows(folder_of(tmp_path), "file") == 3)
        code, said = served.end()
    assert code == 0, said
