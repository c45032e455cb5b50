"""How the run of a trainer that is a Ray actor ends, by how the actor ends: with the real Ray, an actor a run."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import read_report
from support.trainers.command_runs import call, environment, program, until

pytestmark = pytest.mark.long

DRIVER = """
    import contextlib, os, ray, sys

    @ray.remote(num_cpus=0)
    class Trainer:
        def __init__(self, name):
            import otel_bridge
            self.run = otel_bridge.init("ray", name, role="trainer", exporters="file")

        def train(self):
            for step in range(5):
                self.run.log({"loss": step / 2}, step=step)

        def leave(self):
            ray.actor.exit_actor()

        def crash(self):
            os._exit(1)

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[1])
    actors = {name: Trainer.remote(name) for name in sys.argv[2].split(",")}
    if sys.argv[3] == "helped":
        from otel_bridge.ray import end_with_driver
        end_with_driver(*actors.values())
    ray.get([actor.train.remote() for actor in actors.values()])
    with contextlib.suppress(ray.exceptions.RayError):
        if "leaves" in actors:
            ray.get(actors["leaves"].leave.remote())
    with contextlib.suppress(ray.exceptions.RayError):
        if "crashes" in actors:
            ray.get(actors["crashes"].crash.remote())
    if "killed" in actors:
        ray.kill(actors["killed"])
    actors.pop("dropped", None)
    if sys.argv[3] == "raises":
        raise ValueError("the driver failed")
"""


@pytest.fixture
def short_folder() -> Iterator[str]:
    """A folder whose sockets have a path short enough for the kernel, wherever the folders of tests are."""
    made = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        (
            "helped",
            {
                "left": "finished",
                "leaves": "finished",
                "crashes": "killed",
                "killed": "killed",
            },
        ),
        ("raises", {"left": "killed or finished", "dropped": "finished"}),
    ],
)
def test_an_actors_regular_end_is_an_end_and_a_crash_is_none(
    tmp_path: Path, short_folder: str, how: str, expected: dict[str, str]
) -> None:
    pytest.importorskip("ray")
    driver = program(tmp_path, "driver.py", DRIVER)
    base = tmp_path / "runs"
    env = environment(
        tmp_path, OTEL_BRIDGE_DIR=str(base), OTEL_BRIDGE_END_GRACE_S="0.5"
    )

    done = call(
        [sys.executable, driver, short_folder, ",".join(expected), how],
        cwd=tmp_path,
        env=env,
    )

    def ended() -> dict[str, str] | None:
        reports = [
            report
            for folder in run_folders(base)
            if (report := read_report(folder)) is not None
        ]
        found = {report.name: report.status for report in reports if report.ended}
        return found if len(found) == len(expected) else None

    assert done.returncode == (1 if how == "raises" else 0), done.stderr
    found = until(ended, "the ends of all runs")
    # A driver that ends drops its handles and has its actors killed; an actor may end before it is killed.
    assert {
        name: status
        for name, status in found.items()
        if status not in expected[name].split(" or ")
    } == {}, found
