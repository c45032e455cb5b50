"""Lightning's logger and entry points, with a fake of the package: the end of a phase is not the end of the run."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from support.trainers.command_runs import (
    PYTHON,
    call,
    environment,
    program,
    report_of,
    runs,
)
from support.trainers.framework_runs import (
    config_in,
    ends_of,
    recorded,
    recorded_runs,
    rows_of,
    run_captured,
    run_program,
)

PHASES = """
import pickle
from lightning.pytorch import Trainer, loggers
from otel_bridge.adapters.lightning import OtelBridgeLogger

logger = OtelBridgeLogger("sft", "one", tags=["a"])
assert isinstance(logger, loggers.Logger)
trainer = Trainer(logger=logger)
trainer.run("fit", (1, {"loss": 0.5, "epoch": 0}), (2, {"loss": 0.25, "epoch": 0}))
trainer.run("validate", (2, {"val": 2.0}))
trainer.run("test", (0, {"loss": 3.0}))
assert (logger.name, logger.version, logger.experiment.name) == ("sft", "one", "one")
copy = pickle.loads(pickle.dumps(logger))
copy.log_metrics(metrics={"loss": 4.0}, step=5)
"""
FAILS = """
from lightning.pytorch import Trainer
from otel_bridge.adapters.lightning import OtelBridgeLogger

trainer = Trainer(logger=OtelBridgeLogger("sft", "one"))
try:
    trainer.run("fit", (1, {"loss": 0.5}), error=RuntimeError("out of memory"))
except RuntimeError:
    pass
"""
TIMED = """
import copy, pickle
from lightning.pytorch import Trainer
from otel_bridge.adapters.lightning import OtelBridgeLogger

logger = OtelBridgeLogger("sft", "one")
logger.log_hyperparams({"lr": 0.1})
timed = lambda trainer: type(vars(trainer.profiler).get("start")).__name__
for _ in range(2):
    trainer = Trainer(logger=logger)
    trainer.run("fit", (1, {"loss": 0.5}))
    print(timed(trainer))
for copied in (copy.deepcopy(trainer), pickle.loads(pickle.dumps(trainer))):
    print(timed(copied), copied.profiler.start.__self__ is copied.profiler)
    copied.run("fit", (2, {"loss": 0.5}))
    print(timed(copied))
"""
ENTRY_POINT = """
import sys
from lightning.pytorch import Trainer

trainer = Trainer(logger=False)
trainer.run("fit", (1, {"loss": 0.5}))
trainer.run("validate", (1, {"val": 2.0}))
print(len(trainer.loggers), [(one.name, one.version, one.save_dir) for one in trainer.loggers])
print([name for name in sys.modules if name.startswith(("otel_bridge.emit", "opentelemetry"))][:1])
"""
FABRIC = """
from lightning.fabric import Fabric

fabric = Fabric()
for _ in range(2):
    fabric.setup(object())
for step in range(3):
    fabric.log_dict({"loss": step / 2}, step=step)
"""
BESIDE = """
import sys
from lightning.fabric import Fabric
from lightning.pytorch import Trainer, loggers
from otel_bridge.adapters.lightning import OtelBridgeLogger

class WandbLogger(loggers.Logger):
    name = version = save_dir = None
    run = None

    @property
    def experiment(self):
        import wandb
        self.run = self.run or wandb.init(project="math", name="wandb's", mode=MODE)
        return self.run

    def log_metrics(self, metrics, step=None):
        self.experiment.log({**metrics, "trainer/global_step": step}, step=step)

    def log_hyperparams(self, params, *args, **kwargs):
        self.experiment.config.update({name: f"wandb's {value}" for name, value in params.items()})

own, beside, MODE = OtelBridgeLogger("sft", "one"), WandbLogger(), "online"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "order",
    ["[own, beside]", pytest.param("[beside, own]", marks=pytest.mark.long)],
)
def test_what_a_captured_logger_records_is_not_recorded_again(
    tmp_path: Path, order: str
) -> None:
    code = f"""
    class Module:
        trainer = Trainer(logger={order})

        def training_step(self):
            self.trainer.loggers[{order}.index(own)].log_metrics({{"only": 7.0}}, step=1)
            own.log_hyperparams({{"only": 7}})

    module = Module()
    module.trainer.run("fit", (1, {{"loss": 0.5}}), (2, {{"loss": 0.25}}))
    module.training_step()
    """

    done = run_captured(tmp_path, "wandb", BESIDE + textwrap.dedent(code))

    found, report = recorded(tmp_path), report_of(runs(tmp_path))
    assert (rows_of(found, "loss"), rows_of(found, "only")) == (
        [(1, 0.5), (2, 0.25)],
        [(1, 7.0)],
    )
    assert config_in(found).items() >= {"lr": "wandb's 0.1", "only": 7}.items()
    assert (report.project, report.name) == ("math", "wandb's")
    assert (
        done.stderr.count(
            "metrics of Lightning are recorded once, as wandb gets them, in math/wandb's"
        )
        == 1
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "captured", ["wandb", pytest.param("trackio", marks=pytest.mark.long)]
)
def test_fabric_records_through_the_logger_whose_tracker_is_captured_else_through_this_one(
    tmp_path: Path, captured: str
) -> None:
    code = """
    MODE = "online" if sys.argv[1] == "wandb" else "disabled"
    fabric = Fabric([own, beside])
    for step in range(3):
        fabric.log_dict({"loss": step / 2}, step=step)
    """

    run_captured(tmp_path, captured, BESIDE + textwrap.dedent(code), captured)

    ((report, found),) = recorded_runs(tmp_path)
    assert rows_of(found, "loss") == [(0, 0.0), (1, 0.5), (2, 1.0)]
    assert report.name == ("wandb's" if captured == "wandb" else "one")


@pytest.mark.slow
def test_a_logger_whose_tracker_is_turned_off_records_nothing_in_place_of_this_one(
    tmp_path: Path,
) -> None:
    code = """
    MODE = "disabled"
    Trainer(logger=[beside, own]).run("fit", (1, {"loss": 0.5}))
    """

    run_captured(tmp_path, "wandb", BESIDE + textwrap.dedent(code))

    assert (rows_of(recorded(tmp_path), "loss"), report_of(runs(tmp_path)).name) == (
        [(1, 0.5)],
        "one",
    )


@pytest.mark.slow
def test_rows_after_the_end_of_a_phase_are_recorded_and_the_run_ends_once(
    tmp_path: Path,
) -> None:
    run_program(tmp_path, PHASES)

    found = recorded(tmp_path)
    assert rows_of(found, "loss") == [(1, 0.5), (2, 0.25), (0, 3.0), (5, 4.0)]
    assert (rows_of(found, "val"), ends_of(found)) == ([(2, 2.0)], ["finished"])
    assert config_in(found)["lr"] == 0.1


@pytest.mark.slow
def test_two_loggers_of_different_names_in_one_trainer_both_record_from_begin_to_end(
    tmp_path: Path,
) -> None:
    code = """
    from lightning.pytorch import Trainer
    from otel_bridge.adapters.lightning import OtelBridgeLogger

    trainer = Trainer(logger=[OtelBridgeLogger("sft", "one"), OtelBridgeLogger("sft", "two")])
    trainer.run("fit", (1, {"loss": 0.5}), (2, {"loss": 0.25}))
    """

    done = run_program(tmp_path, code)

    for _, found in recorded_runs(tmp_path):
        assert rows_of(found, "loss") == [(1, 0.5), (2, 0.25)]
        assert ends_of(found) == ["finished"]
    assert sorted(report.name for report, _ in recorded_runs(tmp_path)) == [
        "one",
        "two",
    ]
    assert "init() of another run" not in done.stderr


def test_each_trainer_is_timed_though_its_logger_was_used_before_and_can_be_copied(
    tmp_path: Path,
) -> None:
    assert run_program(tmp_path, TIMED).stdout.splitlines() == [
        *["_TimedAction"] * 2,
        *["method True", "_TimedAction"] * 2,
    ]


@pytest.mark.slow
def test_a_phase_that_failed_ends_the_run_as_failed(tmp_path: Path) -> None:
    run_program(tmp_path, FAILS)

    found = recorded(tmp_path)
    assert (rows_of(found, "loss"), ends_of(found)) == ([(1, 0.5)], ["failed"])


@pytest.mark.slow
def test_the_entry_point_adds_one_logger_that_moves_no_checkpoint(
    tmp_path: Path,
) -> None:
    done = run_program(
        tmp_path, ENTRY_POINT, OTEL_BRIDGE_LIGHTNING="1", OTEL_BRIDGE_PROJECT="sft"
    )

    found = recorded(tmp_path)
    assert (rows_of(found, "loss"), rows_of(found, "val")) == ([(1, 0.5)], [(1, 2.0)])
    assert (done.stdout.splitlines()[0], report_of(runs(tmp_path)).project) == (
        "1 [('', '', '.')]",
        "sft",
    )


@pytest.mark.parametrize("flag", ["fast_dev_run", "barebones"])
def test_the_entry_point_adds_nothing_where_lightning_turns_loggers_off(
    tmp_path: Path, flag: str
) -> None:
    code = ENTRY_POINT.replace("logger=False", f"logger=False, {flag}=True")

    done = run_program(tmp_path, code, OTEL_BRIDGE_LIGHTNING="1")

    assert (done.stdout, runs(tmp_path).exists()) == ("0 []\n[]\n", False)


def test_a_logger_without_a_folder_has_that_of_the_calling_trainer_else_the_working_folder(
    tmp_path: Path,
) -> None:
    code = """
    from lightning.pytorch import Trainer
    from otel_bridge.adapters.lightning import OtelBridgeLogger

    own, given = OtelBridgeLogger("sft", "one"), OtelBridgeLogger("sft", "one", save_dir="given")
    print([Trainer(logger=one, default_root_dir="root").log_dir for one in (own, given)])
    print(own.save_dir)
    """

    done = run_program(tmp_path, code)

    assert done.stdout.splitlines() == ["['root', 'given']", str(tmp_path)]


def test_without_its_variable_the_entry_point_adds_nothing_and_imports_nothing(
    tmp_path: Path,
) -> None:
    done = run_program(tmp_path, ENTRY_POINT)
    misspelt = run_program(tmp_path, ENTRY_POINT, OTEL_BRIDGE_LIGHTNING="maybe")

    assert (done.stdout, done.stderr, runs(tmp_path).exists()) == (
        "0 []\n[]\n",
        "",
        False,
    )
    assert misspelt.stdout.startswith("0 []\n")
    assert (
        "Lightning continues without otel-bridge: OTEL_BRIDGE_LIGHTNING='maybe': expected 1 or 0"
        in misspelt.stderr
    )


@pytest.mark.slow
def test_fabric_gets_the_logger_once_when_it_sets_up_a_module(tmp_path: Path) -> None:
    run_program(tmp_path, FABRIC, OTEL_BRIDGE_LIGHTNING="1")

    assert rows_of(recorded(tmp_path), "loss") == [(0, 0.0), (1, 0.5), (2, 1.0)]


def test_ranks_above_zero_record_nothing(tmp_path: Path) -> None:
    code = """
    import lightning_utilities.core.rank_zero
    from otel_bridge.adapters.lightning import OtelBridgeLogger
    logger = OtelBridgeLogger("sft", "one")
    logger.experiment.log({"loss": 1.0})
    logger.log_metrics(metrics={"loss": 1.0}, step=1)
    logger.finalize("success")
    print(logger.name, logger.version)
    """

    done = run_program(tmp_path, code, RANK="1")

    assert (done.stdout, runs(tmp_path).exists()) == ("sft one\n", False)


def test_without_lightning_the_error_names_what_to_install(tmp_path: Path) -> None:
    code = "from otel_bridge.adapters.lightning import OtelBridgeLogger"

    done = call(
        [PYTHON, program(tmp_path, "train.py", code)],
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    assert (
        "MissingExtraError: Lightning is not installed; this adapter needs lightning>=2.1; run:"
        in done.stderr
    )
