"""``otel-bridge demo``: three trackers hold the same run, compared through each tracker's own interface."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import ScopeMetrics

from otel_bridge.demo.roles import WORKERS
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
WRITES_DOWN = """
import json, os, sys
if "otel_bridge.demo.roles" in sys.orig_argv:
    import numpy, otel_bridge
    annotate = otel_bridge.Run.annotate

    def writing_down(run, rollouts, step, **streams):
        values = {name: [numpy.asarray(row).tolist() for row in rows] for name, rows in streams.items()}
        with open(os.environ["WRITTEN_DOWN"], "a") as file:
            file.write(json.dumps({"step": step, "rollouts": rollouts, **values}) + "\\n")
        annotate(run, rollouts, step, **streams)

    otel_bridge.Run.annotate = writing_down
"""
"""A site of the roles that writes down the tokens that they record."""
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
    site = root / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(WRITES_DOWN)
    ignored = {"WANDB_MODE": "online", "MLFLOW_TRACKING_URI": "http://nowhere:1"}
    written = {"PYTHONPATH": str(site), "WRITTEN_DOWN": str(root / "tokens.jsonl")}
    env = environment(root, TMPDIR=str(root / "temp"), **ignored, **written)
    directory = root / "shown"
    done = otel_bridge(
        "demo",
        "--steps",
        str(STEPS),
        "--dir",
        str(directory),
        cwd=root / "here",
        env=env,
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
        r"^  (wandb upload|wandb|mlflow page|mlflow|trackio) +(\S.*)$",
        demo.output,
        re.MULTILINE,
    )

    assert (
        demo.code,
        report.status,
        report.ended,
        report.drops,
        report.missing_rows,
    ) == (
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
        (
            "mlflow",
            f"mlflow ui --backend-store-uri sqlite:///{demo.directory}/mlflow.db",
        ),
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
    # The first section is not a role: it shows what a person watches once more.
    roles = {"0_featured", "trainer", "explorer", "evaluator"}
    assert [shown.roles for shown in every] == [roles] * 3


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
        assert (
            shown.steps("trainer")
            == shown.steps("explorer")
            == list(range(1, STEPS + 1))
        )
        assert shown.steps("evaluator") == list(
            range(1, len(shown.steps("evaluator")) + 1)
        )
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
    assert {one.key for one in rollouts.values()} == {
        "explorer/rollouts",
        "evaluator/rollouts",
    }
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


def test_the_tokens_of_a_step_are_in_all_three_trackers_as_numpy_sums_them(
    demo: Demo,
) -> None:
    lines = (demo.root / "tokens.jsonl").read_text().splitlines()
    engine: dict[str, list[float]] = {}
    for call in map(json.loads, lines):
        if "logprobs" in call:
            engine |= dict(zip(call["rollouts"], call["logprobs"], strict=True))
    trained = [call for call in map(json.loads, lines) if "trainer_logprobs" in call]

    assert [call["step"] for call in trained] == list(range(5, STEPS + 1, 5))
    for call in trained:
        expected = figures_of(call, engine)
        for name, shown in demo.trackers.items():
            values = {
                key: float(value)
                for key, step, value in shown.scalars
                if step == call["step"]
            }
            assert {key: values[key] for key in expected} == pytest.approx(
                expected, rel=1e-4
            ), name


def figures_of(
    call: dict[str, Any], engine: dict[str, list[float]]
) -> dict[str, float]:
    """What numpy computes from the log-probabilities of both sides; streams have 32-bit floats."""
    before = np.concatenate([engine[rollout] for rollout in call["rollouts"]]).astype(
        "f4"
    )
    after = np.concatenate(call["trainer_logprobs"]).astype("f4")
    ratio = after.astype("f8") - before
    figures = {
        "count": float(len(ratio)),
        "rollouts": float(len(call["rollouts"])),
        "entropy": np.concatenate(call["entropies"]).mean(),
        "logprob/trainer": after.mean(),
        "mismatch/k1": -ratio.mean(),
        "mismatch/k3": (np.exp(ratio) - 1 - ratio).mean(),
        "mismatch/mean": abs(ratio).mean(),
        "mismatch/max": abs(ratio).max(),
        "mismatch/beyond": (abs(ratio) > 0.5).mean(),
    }
    return {f"trainer/tokens/{name}": float(value) for name, value in figures.items()}


def test_the_phases_of_both_explorers_are_one_row_a_step_and_a_bar_of_the_timeline(
    demo: Demo,
) -> None:
    ranks = demo.trackio.series("explorer/time/ranks")
    slowest_s = demo.trackio.series("explorer/time/max/generate")

    command = ["timeline", str(demo.directory / "runs")]
    shown = otel_bridge(*command, cwd=demo.root, env=environment(demo.root))

    assert ranks == [2.0] * STEPS
    # The slow explorer decides, although each began its pause a moment before its phase.
    assert min(slowest_s) > WORKERS[0].step_s
    assert re.search(r"^explorer\n +█ generate", shown.stdout, re.MULTILINE), (
        shown.stdout
    )


def test_status_names_the_explorer_that_the_other_one_waits_for(demo: Demo) -> None:
    status = otel_bridge(
        "status", str(demo.directory), cwd=demo.root, env=environment(demo.root)
    )

    line = r"^explorer: the others wait for rank 1, which takes [0-9.]+ times as long in generate"
    assert re.search(line, status.stdout, re.MULTILINE), status.stdout
    assert re.search(line, demo.output, re.MULTILINE), demo.output


def test_each_rollout_with_tokens_has_a_view_in_every_tracker(demo: Demo) -> None:
    folders = [
        demo.directory / "wandb",
        demo.directory / "mlruns",
        demo.directory / "trackio",
    ]

    pages = [len(list(folder.rglob("*.html"))) for folder in folders]

    assert pages == [len(range(5, STEPS + 1, 5)) * 16] * 3


def test_nothing_lies_outside_the_folder_and_none_of_its_folders_is_hidden(
    demo: Demo,
) -> None:
    outside = [
        path
        for name in ("home", "here", "temp")
        for path in (demo.root / name).rglob("*")
    ]

    hidden = [path for path in demo.directory.rglob(".*") if path.is_dir()]

    assert (outside, hidden) == ([], [])
    assert sorted(path.name for path in demo.directory.iterdir()) == [
        "mlflow.db",
        "mlruns",
        "runs",
        "trackio",
        "wandb",
    ]


def test_with_one_exporter_the_others_leave_nothing(tmp_path: Path) -> None:
    env = environment(tmp_path)

    done = otel_bridge(
        "demo",
        "--steps",
        "3",
        "--dir",
        "shown",
        "--exporters",
        "trackio",
        cwd=tmp_path,
        env=env,
    )

    directory = tmp_path / "shown"
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in directory.iterdir()) == ["runs", "trackio"]
    assert shown_runs.trackio(
        directory / "trackio", run_info(directory / "runs")
    ).steps("trainer") == [1, 2, 3]


def test_a_trainer_killed_in_mid_run_fails_the_demo_and_loses_no_row(
    tmp_path: Path,
) -> None:
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
    assert [
        scalar for scalar in wandb.scalars if not is_constant(scalar[0])
    ] == mlflow.scalars
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
                point = (
                    ScopeMetrics.FromString(frame.payload)
                    .metrics[-1]
                    .gauge.data_points[0]
                )
                steps += [
                    one.value.int_value
                    for one in point.attributes
                    if one.key == "rl.step"
                ]
    return steps
