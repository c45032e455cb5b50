"""Workers of a local Ray cluster inherit the capture from the driver's environment."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from support.trainers.command_runs import (
    environment,
    only_folder,
    otel_bridge,
    program,
    runs,
    values,
)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="ray has no wheel for this Python",
    ),
]

ACTORS = """
import ray
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

@ray.remote
class Worker:
    def work(self, key):
        import {package}
        {package}.init(project="p", name="one")
        for step in range(3):
            {package}.log({{key: float(step)}}, step=step)
        {package}.finish()

workers = [Worker.remote(), Worker.remote()]
ray.get([one.work.remote(key) for one, key in zip(workers, ("a", "b"))])
ray.shutdown()
"""


@pytest.mark.parametrize("package", ["wandb", "trackio"])
def test_two_actors_that_log_to_a_tracker_are_one_run(
    tmp_path: Path, package: str
) -> None:
    script = program(tmp_path, "driver.py", ACTORS.format(package=package))
    env = environment(
        tmp_path,
        WANDB_BASE_URL="http://127.0.0.1:9",
        TRACKIO_DIR=str(tmp_path / "store"),
        HF_HUB_OFFLINE="1",
        RAY_USAGE_STATS_ENABLED="0",
    )

    done = otel_bridge(
        "run",
        "--exporters",
        "file",
        "--capture",
        package,
        "--",
        "python",
        script,
        cwd=tmp_path,
        env=env,
    )

    points = [(step, float(step)) for step in range(3)]
    assert done.returncode == 0, done.stderr
    found = values(only_folder(runs(tmp_path)))
    found.pop("attempt", None)  # where the second actor began after the first had ended
    assert found == {"a": points, "b": points}
    assert not list((tmp_path / "store").rglob("*.db"))
    assert not (tmp_path / "wandb").exists()
