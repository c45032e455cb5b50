"""``otel-bridge demo``: three trackers hold the same run, compared through each tracker's own interface."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ScopeMetrics

from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.frames import Signal
from otel_bridge.journal.report import read_report
from otel_bridge.journal.segment import read_segment
from otel_bridge.records import Status
from support.trackers import shown_runs
from support.trainers.command_runs import (
    BIN,
    environment,
    only_folder,
    otel_bridge,
    report_of,
    run_info,
    started,
    until,
)
from support.waiting import HANG_S

pytestmark = pytest.mark.long
STEPS = 25
EXPLORER_STEP_S = 0.4


@dataclass
class Demo:
    """One run of the demo and what each tracker shows of it."""

    root: Path
    directory: Path
    code: int
    output: str
    wandb: shown_runs.Shown
    mlflow: shown_runs.Shown
    trackio: shown_runs.Shown

    @property
    def trackers(self) -> dict[str, shown_runs.Shown]:
        return {"wandb": self.wandb, "mlflow": self.mlflow, "trackio": self.trackio}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    root = tmp_path_factory.mktemp("demo")
    for name in ("here", "temp"):
        (root / name).mkdir()
    ignored = {"WANDB_MODE": "online", "MLFLOW_TRACKING_URI": "http://nowhere:1"}
    env = environment(root, TMPDIR=str(root / "temp"), **ignored)
    directory = root / "shown"
    done = otel_bridge(
        "demo", "--steps", str(STEPS), "--dir", str(directory), cwd=root / "here", env=env
    )
    assert run_folders(directory / "runs"), done.stderr
    run = run_info(directory / "runs")
    return Demo(
        root=root,
        directory=directory,
        code=done.returncode,
        output=done.stdout,
        wandb=shown_runs.wandb_offline(directory, run.id),
        mlflow=shown_runs.mlflow(f"sqlite:///{directory}/mlflow.db", run),
        trackio=shown_runs.trackio(directory / "trackio", run),
    )


def test_the_demo_exits_well_and_says_how_each_tracker_is_opened(demo: Demo) -> None:
    report = report_of(demo.directory / "runs")

    shown = re.findall(
        r"^  (wandb upload|wandb|mlflow|trackio) +(\S.*)$", demo.output, re.MULTILINE
    )

    assert (demo.code, report.status, report.ended, report.drops, report.missing_rows) == (
        0,
        "finished",
        True,
        {},
        0,
    )
    run_id = only_folder(demo.directory / "runs").run_id
    page = shown.pop(3)
    assert shown == [
        ("wandb", f"{demo.directory}/wandb"),
        ("wandb upload", f"wandb sync {demo.directory}/wandb/offline-run-*-{run_id}*"),
        ("mlflow", f"mlflow ui --backend-store-uri sqlite:///{demo.directory}/mlflow.db"),
        (
            "trackio",
            f"TRACKIO_DIR={demo.directory}/trackio trackio show --project {report.project}",
        ),
    ]
    assert re.fullmatch(
        r"http://127\.0\.0\.1:5000/#/experiments/\d+/runs/\w+/model-metrics\?workflowType=machine_learning",
        page[1],
    )
    assert re.search(r"trainer +25\b", demo.output)


CONSTANTS = {"total", "kept"}
"""Statistics of rollouts that are constant in most jobs, which Trackio and MLflow do not chart."""


def is_constant(key: str) -> bool:
    return "/rollouts/" in key and key.rpartition("/")[2] in CONSTANTS


def test_all_three_trackers_show_the_same_scalars_and_roles(demo: Demo) -> None:
    every = demo.trackers.values()

    lengths = {name: len(shown.scalars) for name, shown in demo.trackers.items()}

    charted = [scalar for scalar in demo.wandb.scalars if not is_constant(scalar[0])]
    assert demo.mlflow.scalars == charted, lengths
    assert demo.trackio.scalars == charted, lengths
    assert len(set(demo.wandb.scalars)) == len(demo.wandb.scalars) > STEPS * 12
    assert [shown.roles for shown in every] == [{"trainer", "explorer", "evaluator"}] * 3


def test_all_three_trackers_show_the_same_distributions(demo: Demo) -> None:
    every = list(demo.trackers.values())

    keys = {"trainer/advantages", "trainer/lineage/staleness/distribution"}
    steps = {(key, step) for key in keys for step in range(1, STEPS + 1)}

    assert [shown.distributions for shown in every] == [demo.wandb.distributions] * 3
    assert demo.wandb.distributions.keys() == steps
    assert demo.wandb.counts == demo.trackio.counts == dict.fromkeys(steps, 128)


def test_each_role_counts_its_own_steps_and_each_value_has_the_time_it_was_logged(
    demo: Demo,
) -> None:
    every = demo.trackers.values()

    spread_ms = [
        (shown.times_ms["explorer/accuracy", STEPS] or 0)
        - (shown.times_ms["explorer/accuracy", 1] or 0)
        for shown in every
    ]

    for shown in every:
        assert shown.steps("trainer") == shown.steps("explorer") == list(range(1, STEPS + 1))
        assert shown.steps("evaluator") == list(range(1, len(shown.steps("evaluator")) + 1))
    off = [
        key
        for key, when in demo.trackio.times_ms.items()
        if any(abs((shown.times_ms[key] or 0) - (when or 0)) > 1 for shown in every)
    ]
    assert off == []
    assert min(spread_ms) >= STEPS * EXPLORER_STEP_S * 1000 / 2


def test_all_three_trackers_show_the_same_rollouts_with_messages_tool_calls_and_rewards(
    demo: Demo,
) -> None:
    every = list(demo.trackers.values())

    rollouts = demo.trackio.rollouts

    assert [shown.rollouts for shown in every] == [rollouts] * 3
    assert demo.mlflow.conversations == demo.trackio.conversations
    assert {one.key for one in rollouts.values()} == {"explorer/rollouts", "evaluator/rollouts"}
    assert all(
        one.reward is not None and one.messages == 2 * one.tool_calls + 2
        for one in rollouts.values()
        if one.answer.startswith("The answer")
    )
    assert sum(one.tool_calls for one in rollouts.values()) > STEPS * 16


def test_config_and_end_of_the_run_are_the_same_in_all_trackers(demo: Demo) -> None:
    every = list(demo.trackers.values())

    config = demo.wandb.config

    assert [shown.config for shown in every] == [config] * 3
    assert config["trainer/algorithm"] == "grpo"
    assert (demo.wandb.status, demo.mlflow.status) == (Status.FINISHED, Status.FINISHED)


def test_the_reward_rises(demo: Demo) -> None:
    rewards = demo.trackio.series("trainer/reward/mean")

    fifth = STEPS // 5

    assert sum(rewards[-fifth:]) / fifth > sum(rewards[:fifth]) / fifth + 0.2


def test_nothing_lies_outside_the_folder_and_none_of_its_folders_is_hidden(demo: Demo) -> None:
    outside = [path for name in ("home", "here", "temp") for path in (demo.root / name).rglob("*")]

    hidden = [path for path in demo.directory.rglob(".*") if path.is_dir()]

    assert (outside, hidden) == ([], [])
    assert sorted(path.name for path in demo.directory.iterdir()) == [
        "mlflow.db",
        "runs",
        "trackio",
        "wandb",
    ]


def test_with_one_exporter_the_others_leave_nothing(tmp_path: Path) -> None:
    env = environment(tmp_path)

    done = otel_bridge(
        "demo", "--steps", "3", "--dir", "shown", "--exporters", "trackio", cwd=tmp_path, env=env
    )

    directory = tmp_path / "shown"
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in directory.iterdir()) == ["runs", "trackio"]
    assert shown_runs.trackio(directory / "trackio", run_info(directory / "runs")).steps(
        "trainer"
    ) == [1, 2, 3]


def test_a_trainer_killed_in_mid_run_fails_the_demo_and_loses_no_row(tmp_path: Path) -> None:
    runs = tmp_path / "shown" / "runs"
    command = [
        str(BIN / "otel-bridge"),
        "demo",
        "--steps",
        "500",
        "--dir",
        "shown",
        "--exporters",
        "wandb,mlflow",
    ]
    with started(command, cwd=tmp_path, env=environment(tmp_path)) as process:
        until(lambda: _last_step(runs) > 5, "trainer's steps")
        trainer = _role(process.pid, "trainer")
        trainer.send_signal(signal.SIGSTOP)
        until(lambda: trainer.status() == psutil.STATUS_STOPPED, "the trainer to stop")
        logged = _logged_steps(runs)
        trainer.kill()

        output, _ = process.communicate(timeout=HANG_S)

    run = run_info(runs)
    wandb = shown_runs.wandb_offline(tmp_path / "shown", run.id)
    mlflow = shown_runs.mlflow(f"sqlite:///{tmp_path}/shown/mlflow.db", run)
    assert process.returncode == 1, output
    assert "trainer failed: killed by SIGKILL" in output
    assert (
        wandb.steps("trainer")
        == mlflow.steps("trainer")
        == logged
        == list(range(1, len(logged) + 1))
    )
    assert (wandb.status, mlflow.status, report_of(runs).status) == (
        Status.KILLED,
        Status.KILLED,
        "killed",
    )
    assert [scalar for scalar in wandb.scalars if not is_constant(scalar[0])] == mlflow.scalars
    assert wandb.rollouts == mlflow.rollouts


def _last_step(runs: Path) -> int:
    report = read_report(only_folder(runs)) if run_folders(runs) else None
    return 0 if report is None else report.steps.get("trainer/step", 0)


def _role(demo_pid: int, role: str) -> psutil.Process:
    children = psutil.Process(demo_pid).children(recursive=True)
    return next(child for child in children if role in child.cmdline())


def _logged_steps(runs: Path) -> list[int]:
    """Steps of the rows that stand in the trainer's segments."""
    steps: list[int] = []
    for segment in only_folder(runs).segments():
        header, scan = read_segment(segment.path, 0, limit_bytes=1 << 30, final=False)
        if header is None or header.role != "trainer":
            continue
        for frame in scan.frames:
            if frame.signal is Signal.METRICS:
                point = ScopeMetrics.FromString(frame.payload).metrics[-1].gauge.data_points[0]
                steps += [one.value.int_value for one in point.attributes if one.key == "rl.step"]
    return steps
