"""Resumed, forked and rewound runs of a captured wandb: where they continue, and what their program reads of before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from otel_bridge.journal.folder import run_folders
from support.trainers.captured_wandb import captured, captured_points
from support.trainers.command_runs import only_folder, runs, values

pytestmark = pytest.mark.slow


FIRST = """
import os, signal, wandb
run = wandb.init(project="p", id="r1", resume="allow", config={"lr": 0.1, "deep": {"a": 1}, "api_key": "sk-1234567890"})
assert not run.resumed and not dict(run.summary) and run.step == 0
run.config["seed"] = 3
run.define_metric("acc", summary="max")
for number in (5, 4):
    run.log({"loss": number, "acc": number})
run.summary["best"] = 0.75
"""


SECOND = """
import wandb
run = wandb.init(project="p", id="r1", resume=MODE, config={"lr": 0.2})
config, summary = dict(run.config), run.summary
assert run.resumed and run.step == 2, (run.resumed, run.step)
assert config == {"lr": 0.2, "deep": {"a": 1}, "seed": 3}, config
assert (summary["loss"], summary["acc"]["max"], summary.get("best")) == (4, 5, 0.75), summary
run.log({"loss": 3})
"""


@pytest.mark.long
@pytest.mark.parametrize("mode", ["'must'", "'allow'"])
def test_the_program_of_a_resumed_run_reads_config_summary_and_step_of_before(
    tmp_path: Path, mode: str
) -> None:
    captured(tmp_path, FIRST)
    captured(tmp_path, SECOND.replace("MODE", mode))

    assert captured_points(tmp_path)["loss"] == [(0, 5), (1, 4), (2, 3)]
    assert (
        "sk-1234567890"
        not in (only_folder(runs(tmp_path)).path / "captured.json").read_text()
    )


@pytest.mark.long
def test_after_a_kill_the_config_of_a_resumed_run_is_there(tmp_path: Path) -> None:
    captured(
        tmp_path, FIRST + "os.kill(os.getpid(), signal.SIGKILL)\n", code_of_exit=137
    )
    code = """
    import wandb
    run = wandb.init(project="p", id="r1", resume="must")
    assert run.config["lr"] == 0.1 and run.step == 2, (dict(run.config), run.step)
    """

    captured(tmp_path, code)


def test_without_resume_a_run_of_the_same_id_begins_with_its_own_config(
    tmp_path: Path,
) -> None:
    code = """
    import wandb
    for number in range(2):
        with wandb.init(project="p", id="r1", config={f"k{number}": 1}) as run:
            assert dict(run.config) == {f"k{number}": 1} and not dict(run.summary) and not run.resumed
            run.log({"a": 1})
    """

    captured(tmp_path, code)


def test_a_forked_run_is_new_and_a_rewound_one_is_the_run_that_it_names(
    tmp_path: Path,
) -> None:
    code = """
    import wandb
    for named in ({"fork_from": "a?_step=1"}, {"resume_from": "a?_step=4"}):
        with wandb.init(project="p", **named) as run:
            run.log({"x": 1})
            print(run.id, run.step)
    """

    output = captured(tmp_path, code)

    assert sorted(values(folder)["x"] for folder in run_folders(runs(tmp_path))) == [
        [(0, 1)],
        [(0, 1)],
    ]
    assert "a 1\n" in output
    assert re.search(r"wandb.init\(fork_from=\) +1\b", output)
