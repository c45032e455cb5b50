"""Lightning itself, by both names of the package, and Fabric: phases, a failure, the entry points."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.command_runs import report_of, runs
from support.trainers.framework_programs import (
    LIGHTNING,
    LIGHTNING_BESIDE,
    LIGHTNING_BESIDE_FABRIC,
    LIGHTNING_ENTRY_POINT,
    LIGHTNING_FABRIC,
    LIGHTNING_FAILS,
    LIGHTNING_PHASES,
)
from support.trainers.framework_runs import (
    AT_FLOOR,
    NEEDS_REAL,
    config_in,
    ends_of,
    recorded,
    rows_of,
    run_captured,
    run_program,
)

pytestmark = NEEDS_REAL
BOTH = pytest.mark.parametrize("package", ["lightning", "pytorch_lightning"])


@BOTH
def test_rows_of_validate_and_test_after_fit_are_recorded_and_the_run_ends_once(
    tmp_path: Path, package: str
) -> None:
    run_program(tmp_path, LIGHTNING_PHASES, package, real=True)

    found = recorded(tmp_path)
    assert [step for step, _ in rows_of(found, "loss")] == [1, 3]
    assert [value for _, value in rows_of(found, "val")][-1:] == [2.0]
    assert [value for _, value in rows_of(found, "test")] == [3.0]
    phases = (
        "time/run_training_batch",
        "time/backward",
        "time/optimizer_step",
        "time/train_dataloader_next",
    )
    assert [step for step, *_ in rows_of(found, *phases)] == [0, 1, 2, 3]
    assert (ends_of(found), config_in(found)["fails"]) == (["finished"], False)


def test_an_exception_inside_ends_the_run_as_failed_although_the_program_catches_it(
    tmp_path: Path,
) -> None:
    run_program(tmp_path, LIGHTNING_FAILS, "lightning", real=True)

    found = recorded(tmp_path)
    assert ([step for step, _ in rows_of(found, "loss")], ends_of(found)) == (
        [1],
        ["failed"],
    )


@BOTH
def test_the_entry_point_adds_the_logger_and_moves_no_checkpoint(
    tmp_path: Path, package: str
) -> None:
    variables = {"OTEL_BRIDGE_LIGHTNING": "1", "OTEL_BRIDGE_PROJECT": "sft"}
    run_program(
        tmp_path / "with",
        LIGHTNING_ENTRY_POINT,
        package,
        "checkpoints",
        real=True,
        **variables,
    )
    without = run_program(
        tmp_path / "without", LIGHTNING_ENTRY_POINT, package, "checkpoints", real=True
    )

    found = recorded(tmp_path / "with")
    assert [step for step, _ in rows_of(found, "loss")] == [1, 3]
    assert checkpoints(tmp_path / "with") == checkpoints(tmp_path / "without") != []
    assert (without.stdout.splitlines()[-1], runs(tmp_path / "without").exists()) == (
        "nothing",
        False,
    )


def test_fabric_records_what_is_logged_after_a_module_is_set_up(tmp_path: Path) -> None:
    run_program(tmp_path, LIGHTNING_FABRIC, real=True, OTEL_BRIDGE_LIGHTNING="1")

    assert rows_of(recorded(tmp_path), "loss") == [(0, 0.0), (1, 0.5), (2, 1.0)]


OWN, WANDB, BOARD = (
    'OtelBridgeLogger("sft", "one")',
    'WandbLogger(project="math", name="two")',
    'TensorBoardLogger("b")',
)
NEITHER = ""


@pytest.mark.parametrize(
    ("captured", "loggers", "attached", "name"),
    [
        ("wandb", f"[{WANDB}, {OWN}]", "0", "math/two"),
        ("wandb", f"[{OWN}, {WANDB}]", "0", "math/two"),
        ("wandb", WANDB, "1", "math/two"),
        ("tensorboard", f"[{BOARD}, {OWN}]", "0", "sft/one"),
        ("tensorboard", "True", "1", NEITHER),
        ("trackio", f"[{BOARD}, {OWN}]", "0", "sft/one"),
    ],
)
def test_beside_a_captured_logger_rows_are_recorded_once_and_what_one_alone_gets_too(
    tmp_path: Path, captured: str, loggers: str, attached: str, name: str
) -> None:
    code = LIGHTNING_BESIDE.replace("LOGGERS", loggers)

    done = run_captured(
        tmp_path, captured, code, "lightning", real=True, OTEL_BRIDGE_LIGHTNING=attached
    )

    found, report = recorded(tmp_path), report_of(runs(tmp_path))
    assert [step for step, _ in rows_of(found, "loss")] == [1, 3]
    assert (rows_of(found, "val")[-1:], rows_of(found, "only")) == (
        [(4, 2.0)],
        [(1, 7.0)],
    )
    assert config_in(found)["fails"] is False
    assert (
        name or f"{report.project}/{report.name}"
    ) == f"{report.project}/{report.name}"
    assert done.stderr.count("metrics of Lightning are recorded once") == (
        captured != "trackio"
    )


@pytest.mark.parametrize(
    ("captured", "loggers"),
    [("wandb", f"[{OWN}, {WANDB}]"), ("tensorboard", f"[{OWN}, {BOARD}]")],
)
def test_fabric_records_rows_once_beside_a_captured_logger(
    tmp_path: Path, captured: str, loggers: str
) -> None:
    run_captured(
        tmp_path,
        captured,
        LIGHTNING_BESIDE_FABRIC.replace("LOGGERS", loggers),
        real=True,
    )

    assert rows_of(recorded(tmp_path), "loss") == [(0, 0.0), (1, 0.5), (2, 1.0)]


def checkpoints(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.ckpt"))


@pytest.mark.skipif(
    AT_FLOOR,
    reason="LightningCLI needs jsonargparse, which the environment of the oldest versions lacks",
)
def test_the_command_line_of_lightning_works_without_a_folder_and_keeps_the_trainers_own(
    tmp_path: Path,
) -> None:
    code = (
        LIGHTNING.replace("package = sys.argv[1]", 'package = "lightning"')
        + """
from lightning.pytorch.cli import LightningCLI

class Data(pl.LightningDataModule):
    def train_dataloader(self):
        return loader()

print("saved in", LightningCLI(Model, Data).trainer.log_dir)
"""
    )
    chosen = (
        "logger=otel_bridge.adapters.lightning.OtelBridgeLogger",
        "logger.project=sft",
        "logger.name=one",
    )
    others = (
        "accelerator=cpu",
        "max_epochs=1",
        "log_every_n_steps=2",
        "default_root_dir=root",
    )

    done = run_program(
        tmp_path,
        code,
        "fit",
        *(f"--trainer.{one}" for one in (*chosen, *others)),
        real=True,
    )

    assert (
        f"saved in {tmp_path / 'root'}" in done.stdout or "saved in root" in done.stdout
    )
    assert [step for step, _ in rows_of(recorded(tmp_path), "loss")] == [1, 3]
    assert list(tmp_path.glob("root/sft/one/checkpoints/*.ckpt"))
