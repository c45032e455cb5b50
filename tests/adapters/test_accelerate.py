"""Accelerate's tracker, with a fake of the package: rows, config, one end; the object and the registered name."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainers.command_runs import (
    PYTHON,
    call,
    environment,
    only_folder,
    otel_bridge,
    program,
    records,
    report_of,
    runs,
)
from support.trainers.framework_programs import ACCELERATE_NAME, ACCELERATE_OBJECT
from support.trainers.framework_runs import (
    config_in,
    ends_of,
    recorded,
    rows_of,
    run_captured,
    run_program,
)

LOSS = [(0, 0.0), (1, 0.5), (2, 1.0)]


@pytest.mark.slow
def test_the_object_records_rows_and_config_and_ends_the_run(tmp_path: Path) -> None:
    run_program(tmp_path, ACCELERATE_OBJECT)

    found = recorded(tmp_path)
    assert (rows_of(found, "loss"), ends_of(found)) == (LOSS, ["finished"])
    assert {"lr": 0.1, "model": "tiny"}.items() <= config_in(found).items()
    assert (report_of(runs(tmp_path)).project, report_of(runs(tmp_path)).name) == (
        "grpo",
        "one",
    )


@pytest.mark.slow
def test_the_registered_name_records_too_and_an_exception_makes_the_end_failed(
    tmp_path: Path,
) -> None:
    done = run_program(tmp_path, ACCELERATE_NAME, fails=True)

    found = recorded(tmp_path)
    assert "RuntimeError: out of memory" in done.stderr
    assert (rows_of(found, "loss"), ends_of(found)) == (LOSS, ["failed"])
    assert report_of(runs(tmp_path)).name == "two"


def test_without_a_capture_no_object_of_the_calling_code_is_looked_at(
    tmp_path: Path,
) -> None:
    code = """
    from otel_bridge.adapters.accelerate import OtelBridgeTracker

    class Trainer:
        looked = 0

        @property
        def trackers(self):
            type(self).looked += 1

        def train(self):
            tracker = OtelBridgeTracker("grpo", name="one")
            tracker.log({"loss": 0.5}, step=0)
            tracker.finish()

    Trainer().train()
    print("looked", Trainer.looked)
    """

    done = run_program(tmp_path, code)

    assert "looked 0" in done.stdout
    assert rows_of(recorded(tmp_path), "loss") == [(0, 0.5)]


BESIDE = """
import sys
import numpy
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from otel_bridge.adapters.accelerate import OtelBridgeTracker

class WandBTracker(GeneralTracker):
    name, requires_logging_directory, tracker = "wandb", False, None

    def start(self):
        import wandb
        self.run = wandb.init(project="math", name="wandb's", mode=sys.argv[2] if len(sys.argv) > 2 else None)

    def store_init_configuration(self, values):
        self.run.config.update({name: f"wandb's {value}" for name, value in values.items()})

    def log(self, values, step=None, **kwargs):
        self.run.log(values, step=step)

class TensorBoardTracker(GeneralTracker):
    name, requires_logging_directory, tracker = "tensorboard", False, None

    def start(self):
        from tensorboardX import SummaryWriter
        self.writer = SummaryWriter("events")

    def log(self, values, step=None, **kwargs):
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self.writer.add_scalar(name, value, step)

own = OtelBridgeTracker("grpo", "one")
made = {"wandb": WandBTracker, "tensorboard": TensorBoardTracker}
accelerator = Accelerator([made[name]() if name in made else own for name in sys.argv[1].split(",")])
accelerator.init_trackers("ignored", config={"lr": 0.1})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "order", ["wandb,own", pytest.param("own,wandb", marks=pytest.mark.long)]
)
def test_what_a_captured_tracker_records_is_not_recorded_again(
    tmp_path: Path, order: str
) -> None:
    code = """
for step in range(3):
    accelerator.log({"loss": step / 2}, step=step)
own.log({"only": 7}, step=3)
own.store_init_configuration({"only": 7})
"""

    done = run_captured(tmp_path, "wandb", BESIDE + code, order)

    found, report = recorded(tmp_path), report_of(runs(tmp_path))
    assert (rows_of(found, "loss"), rows_of(found, "only")) == (LOSS, [(3, 7)])
    assert config_in(found).items() >= {"lr": "wandb's 0.1", "only": 7}.items()
    assert (report.project, report.name) == ("math", "wandb's")
    assert (
        done.stderr.count(
            "metrics of Accelerate are recorded once, as wandb gets them, in math/wandb's"
        )
        == 1
    )


@pytest.mark.slow
def test_a_tracker_that_is_turned_off_records_nothing_in_place_of_this_one(
    tmp_path: Path,
) -> None:
    code = 'accelerator.log({"loss": 0.5}, step=1)'

    run_captured(tmp_path, "wandb", BESIDE + code, "own,wandb", "disabled")

    found = recorded(tmp_path)
    assert (rows_of(found, "loss"), config_in(found)["lr"]) == ([(1, 0.5)], 0.1)
    assert report_of(runs(tmp_path)).name == "one"


@pytest.mark.slow
@pytest.mark.parametrize(
    "order",
    ["tensorboard,own", pytest.param("own,tensorboard", marks=pytest.mark.long)],
)
def test_what_the_tracker_of_tensorboard_leaves_out_is_recorded(
    tmp_path: Path, order: str
) -> None:
    code = """
accelerator.log({"loss": 0.5, "numpy": numpy.float32(1.0), "note": "text"}, step=1)
"""

    run_captured(tmp_path, "tensorboard", BESIDE + code, order)

    found = recorded(tmp_path)
    assert (rows_of(found, "loss"), rows_of(found, "numpy")) == ([(1, 0.5)], [(1, 1.0)])
    assert config_in(found)["lr"] == 0.1
    assert report_of(runs(tmp_path)).name == "one"


@pytest.mark.slow
def test_without_an_exporter_the_run_is_kept_and_one_line_reports_it(
    tmp_path: Path,
) -> None:
    done = run_program(tmp_path, ACCELERATE_OBJECT, OTEL_BRIDGE_EXPORTERS="")

    lines = [
        line
        for line in done.stderr.splitlines()
        if "deliver with: otel-bridge drain" in line
    ]
    assert len(lines) == 1, done.stderr
    drained = otel_bridge(
        "drain",
        str(runs(tmp_path)),
        "--exporters",
        "file",
        cwd=tmp_path,
        env=environment(tmp_path),
    )
    assert drained.returncode == 0, drained.stderr
    assert rows_of(records(only_folder(runs(tmp_path))), "loss") == LOSS


def test_without_accelerate_the_error_names_what_to_install(tmp_path: Path) -> None:
    code = "import otel_bridge.adapters.accelerate"

    done = call(
        [PYTHON, program(tmp_path, "train.py", code)],
        cwd=tmp_path,
        env=environment(tmp_path),
    )

    assert done.stderr.splitlines()[-1] == (
        "otel_bridge.errors.MissingExtraError: accelerate cannot be imported; this adapter needs accelerate>=0.34;"
        " run: pip install 'accelerate>=0.34'"
    )


def test_an_argument_that_init_does_not_have_is_an_error_at_once(
    tmp_path: Path,
) -> None:
    code = "from otel_bridge.adapters.accelerate import OtelBridgeTracker; OtelBridgeTracker('p', projekt='q')"

    done = run_program(tmp_path, code, fails=True)

    assert (
        "ConfigError: projekt= is not an argument of otel_bridge.init(); expected some of dir,"
        in done.stderr
    )
