"""Trinity-RFT itself: its registry finds the monitor; explorer and trainer are two processes and one run."""

from __future__ import annotations

from pathlib import Path

from support.trainers.command_runs import report_of, runs
from support.trainers.framework_jobs import TRINITY, TRINITY_ROLES
from support.trainers.framework_runs import (
    NEEDS_REAL,
    config_in,
    ends_of,
    recorded,
    rollouts_in,
    rows_of,
    run_program,
)

pytestmark = NEEDS_REAL


def test_both_roles_are_one_run_with_rollouts_of_the_table(tmp_path: Path) -> None:
    run_program(tmp_path, TRINITY_ROLES, real=True)

    found = recorded(tmp_path)
    assert rows_of(found, "explorer/rollout/model_version") == [(1, 0), (2, 1), (3, 2)]
    assert rows_of(found, "trainer/actor/loss") == [(1, 0.5), (2, 1.0)]
    rollouts = [(one["role"], one["step"], one["reward"]) for one in rollouts_in(found)]
    assert rollouts == [("trainer", 2, 1.0), ("trainer", 2, 0.25), ("trainer", 2, None)]
    assert (config_in(found)["explorer"]["name"], set(ends_of(found))) == (
        "explorer",
        {"finished"},
    )
    assert (report_of(runs(tmp_path)).project, report_of(runs(tmp_path)).name) == (
        "math",
        "one",
    )


def test_the_validator_of_the_configuration_takes_the_class_path(
    tmp_path: Path,
) -> None:
    code = """
from trinity.common.config_validator import MonitorConfigValidator

config = Config(project="math", name="one", checkpoint_job_dir="jobs")
config.monitor.monitor_type = PATH
MonitorConfigValidator().validate(config)
print(sorted(config.monitor.monitor_args))
"""
    done = run_program(tmp_path, TRINITY + code, real=True)

    assert "'exporters', 'job_type', 'notes', 'system_metrics', 'tags'" in done.stdout
