from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from otel_bridge.emit.config.identity import identify, node_rank
from otel_bridge.emit.config.run_request import RunRequest
from otel_bridge.errors import ConfigError
from otel_bridge.records import run_id_of

_CWD = Path("/home/ada/gsm8k")


def test_an_argument_goes_before_every_variable() -> None:
    env = {
        "OTEL_BRIDGE_PROJECT": "b",
        "OTEL_BRIDGE_RUN_NAME": "b",
        "OTEL_BRIDGE_ROLE": "b",
        "OTEL_BRIDGE_RUN_ID": "b",
        "RANK": "3",
        "WORLD_SIZE": "8",
    }

    found = identify(
        RunRequest(project="a", name="a", role="a", id="a", rank=1), env, _CWD
    )

    assert (found.project, found.name, found.role, found.id, found.id_given) == (
        "a",
        "a",
        "a",
        "a",
        True,
    )
    assert (found.rank, found.world_size) == (1, 8)


def test_a_name_that_was_generated_for_another_run_is_not_that_of_a_run_with_an_id() -> (
    None
):
    env = {"OTEL_BRIDGE_RUN_NAME": "made-up", "OTEL_BRIDGE_GENERATED_NAME": "made-up"}
    here = {**env, "OTEL_BRIDGE_RUN_ID": "trial"}

    found = [
        identify(RunRequest(project="p", id="trial"), one, _CWD) for one in (env, here)
    ]

    assert [(one.id, one.name, one.name_generated) for one in found] == [
        ("trial", "trial", True), ("trial", "made-up", True)
    ]  # fmt: skip


def test_our_variables_go_before_resource_attributes_and_those_before_the_trackers() -> (
    None
):
    env = {
        "OTEL_BRIDGE_PROJECT": "ours",
        "OTEL_RESOURCE_ATTRIBUTES": "rl.project=theirs,rl.run.name=ppo%207b,rl.role=judge,deployment=prod,broken",
        "WANDB_PROJECT": "wandb",
        "WANDB_NAME": "wandb",
        "MLFLOW_EXPERIMENT_NAME": "mlflow",
    }

    found = identify(RunRequest(), env, _CWD)

    assert (found.project, found.name, found.role) == ("ours", "ppo 7b", "judge")
    assert found.resource == {"deployment": "prod"}
    assert found.id == run_id_of("ours", "ppo 7b")


@pytest.mark.parametrize(
    ("env", "project"),
    [
        ({"WANDB_PROJECT": "w", "MLFLOW_EXPERIMENT_NAME": "m"}, "w"),
        ({"MLFLOW_EXPERIMENT_NAME": "m"}, "m"),
        ({}, "gsm8k"),
    ],
)
def test_the_project_falls_back_to_the_trackers_and_the_folder(
    env: dict[str, str], project: str
) -> None:
    assert identify(RunRequest(name="n"), env, _CWD).project == project


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({"WANDB_NAME": "w", "TORCHELASTIC_RUN_ID": "job"}, "w"),
        (
            {
                "TORCHELASTIC_RUN_ID": "job",
                "SLURM_JOB_ID": "17",
                "ENVIRONMENT": "BATCH",
            },
            "job",
        ),
        (
            {
                "TORCHELASTIC_RUN_ID": "none",
                "SLURM_JOB_ID": "17",
                "ENVIRONMENT": "BATCH",
            },
            "17",
        ),
    ],
)
def test_the_name_falls_back_to_the_job(env: dict[str, str], name: str) -> None:
    assert identify(RunRequest(), env, _CWD).name == name


def test_scripts_of_an_interactive_allocation_get_names_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["/home/ada/my train.py"])

    names = {
        identify(RunRequest(), {"SLURM_JOB_ID": "17"}, _CWD).name for _ in range(8)
    }

    assert len(names) > 1
    assert all(
        re.fullmatch(r"my-train-\d{8}-\d{6}-[0-9a-f]{4}", name) for name in names
    )


def test_another_run_is_begun_when_it_is_asked_for() -> None:
    found = identify(
        RunRequest(project="p", name="ppo"), {"OTEL_BRIDGE_NEW_RUN": "1"}, _CWD
    )

    assert re.fullmatch(r"ppo-\d{8}-\d{6}-[0-9a-f]{4}", found.name)
    assert found.id == run_id_of("p", found.name)


@pytest.mark.parametrize(
    ("asked", "env", "name"),
    [
        (RunRequest(project="p", name="ppo"), {}, "ppo-20261129-101112-0a1b"),
        (RunRequest(name="ppo"), {}, "ppo-20261129-101112-0a1b"),
        (RunRequest(project="other", name="ppo"), {}, "ppo"),
        (RunRequest(project="p", name="dpo"), {}, "dpo"),
        (RunRequest(name="ppo"), {"OTEL_BRIDGE_RUN_NAME": "ppo-large"}, "ppo"),
    ],
)
def test_a_child_that_repeats_the_name_joins_the_new_run_of_its_parent(
    asked: RunRequest, env: dict[str, str], name: str
) -> None:
    inherited = {
        "OTEL_BRIDGE_PROJECT": "p",
        "OTEL_BRIDGE_RUN_NAME": "ppo-20261129-101112-0a1b",
    }

    assert identify(asked, {**inherited, **env}, _CWD).name == name


def test_under_a_launcher_the_variables_of_stock_sdks_are_not_read() -> None:
    env = {
        "OTEL_RESOURCE_ATTRIBUTES": "rl.project=theirs,a=b",
        "OTEL_BRIDGE_PROJECT": "ours",
    }

    found = identify(RunRequest(name="n"), env, _CWD, launched=True)

    assert (found.project, found.resource) == ("ours", {})


@pytest.mark.parametrize(
    ("env", "number"),
    [
        ({"OTEL_BRIDGE_NODE_RANK": "0", "GROUP_RANK": "1"}, 0),
        ({"GROUP_RANK": "1", "SLURM_NODEID": "2"}, 1),
        ({"SLURM_NODEID": "2"}, 2),
        ({}, 0),
    ],
)
def test_the_number_of_the_machine(env: dict[str, str], number: int) -> None:
    assert node_rank(env) == number


@pytest.mark.parametrize(
    "asked",
    [
        RunRequest(id="a/b"),
        RunRequest(id=".hidden"),
        RunRequest(id="a" * 129),
        RunRequest(name="a\x00b"),
        RunRequest(project="x" * 300),
        RunRequest(role=" "),
        RunRequest(rank=-1),
        RunRequest(name=np.arange(2)),  # type: ignore[arg-type]
        RunRequest(role=np.arange(2)),  # type: ignore[arg-type]
        RunRequest(id=0),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_a_name_is_refused(asked: RunRequest) -> None:
    with pytest.raises(ConfigError, match="expected"):
        identify(asked, {}, _CWD)
