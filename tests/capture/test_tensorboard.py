"""Capture of TensorBoard: rows are equal to the event files that the program goes on to write."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from otel_bridge.capture import tensorboard
from otel_bridge.journal.folder import run_folders
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
    values,
)

pytestmark = pytest.mark.slow

TENSORBOARDX = """
import numpy as np
from tensorboardX import SummaryWriter
from tensorboardX.proto.graph_pb2 import GraphDef
writer = SummaryWriter("events")
writer.file_writer.add_onnx_graph(GraphDef())
writer.add_text("config", "lr=0.1")
for step in range(0, 300, 100):
    writer.add_scalar("losses/value_loss", 1 / (step + 3), step)
    writer.add_scalar("charts/SPS", step, step, walltime=float("inf"))
    writer.add_histogram("weights", np.arange(10.0), step)
writer.close()
"""
# torch.utils.tensorboard writes its events with this class; torch itself is not needed for it.
TORCH = """
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer, other = EventFileWriter("events"), EventFileWriter("events/eval")
for step in (5, 3, 9):
    value = Summary.Value(tag="loss", simple_value=1 / step)
    writer.add_event(Event(step=step, wall_time=1e9, summary=Summary(value=[value])))
other.add_event(Event(step=9, summary=Summary(value=[Summary.Value(tag="loss", simple_value=0.5)])))
writer.close()
other.close()
"""


def captured(folder: Path, code: str, **variables: str) -> None:
    command = [
        "run",
        "--exporters",
        "file",
        "--capture",
        "tensorboard",
        "--",
        "python",
        program(folder, "t.py", code),
    ]
    done = otel_bridge(*command, cwd=folder, env=environment(folder, **variables))
    assert done.returncode == 0, done.stderr


def scalars_of(events: Path) -> dict[str, list[tuple[int, float]]]:
    """The scalars of the event files in a folder."""
    accumulator = EventAccumulator(
        str(events), size_guidance={"scalars": 0}, purge_orphaned_data=False
    ).Reload()
    tags = accumulator.Tags()["scalars"]
    return {
        tag: [(point.step, point.value) for point in accumulator.Scalars(tag)]
        for tag in tags
    }


def test_the_scalars_of_tensorboardx_are_rows_and_the_rest_is_counted(
    tmp_path: Path,
) -> None:
    captured(tmp_path, TENSORBOARDX)

    found = values(only_folder(runs(tmp_path)))
    report = report_of(runs(tmp_path))
    assert found == scalars_of(tmp_path / "events")
    assert [step for step, _ in found["charts/SPS"]] == [0, 100, 200]
    assert (report.drops["not_captured"], report.drop_keys["not_captured"]) == (
        5,
        "graph",
    )


def test_the_scalars_of_tensorboards_own_writer_are_rows_and_a_second_folder_is_a_prefix(
    tmp_path: Path,
) -> None:
    captured(tmp_path, TORCH)

    found = values(only_folder(runs(tmp_path)))
    second = {
        f"eval/{tag}": points
        for tag, points in scalars_of(tmp_path / "events" / "eval").items()
    }
    assert found == scalars_of(tmp_path / "events") | second
    assert [step for step, _ in found["loss"]] == [5, 3, 9]
    times = [
        record["time_unix_ns"]
        for record in records(only_folder(runs(tmp_path)))
        if record["kind"] == "row"
    ]
    assert times[:3] == [10**18] * 3


def test_the_scalars_of_a_program_that_writes_on_its_last_rank_are_rows(
    tmp_path: Path,
) -> None:
    captured(tmp_path, TORCH, RANK="3", WORLD_SIZE="4")

    found = values(only_folder(runs(tmp_path)))
    assert found["loss"] == scalars_of(tmp_path / "events")["loss"]


def test_hyperparameters_and_groups_before_the_first_scalar_leave_the_keys_of_the_program_as_they_are(
    tmp_path: Path,
) -> None:
    # Both write to folders below the writer's own, by writers of their own.
    code = """
    from tensorboardX import SummaryWriter
    with SummaryWriter("logs/tensorboard") as writer:
        writer.add_hparams({"lr": 0.1}, {"best": 0.5}, name="trial")
        writer.add_scalars("losses", {"actor": 2.0}, 1)
        writer.add_scalar("train/loss", 1.0, 1)
    """

    captured(tmp_path, code)

    assert values(only_folder(runs(tmp_path))) == {
        "trial/best": [(0, 0.5)],
        "losses/actor/losses": [(1, 2.0)],
        "train/loss": [(1, 1.0)],
    }


@pytest.mark.parametrize("package", ["tensorboardX", "tensorboard.summary.writer"])
def test_a_closed_writer_that_the_program_keeps_is_not_above_the_folders_of_the_next_run(
    tmp_path: Path, package: str
) -> None:
    code = f"""
    import otel_bridge
    from {package}.event_file_writer import EventFileWriter
    from tensorboardX import SummaryWriter
    otel_bridge.init("p", "first")
    kept = EventFileWriter("logs")
    kept.close()
    otel_bridge.finish()
    otel_bridge.init("p", "second")
    with SummaryWriter("logs/second") as writer:
        writer.add_scalar("loss", 1.0, 1)
    """

    captured(tmp_path, code)

    found = [values(folder) for folder in run_folders(runs(tmp_path))]
    assert {"loss": [(1, 1.0)]} in found


def test_folders_of_one_name_keep_their_scalars_apart(tmp_path: Path) -> None:
    code = """
    from tensorboardX import SummaryWriter
    for number, folder in enumerate(("runs/a", "runs/b", "runs/a/eval", "runs/b/eval", "runs")):
        with SummaryWriter(folder) as writer:
            writer.add_scalar("loss", number, 1)
    """

    captured(tmp_path, code)

    found = values(only_folder(runs(tmp_path)))
    assert found == {
        "loss": [(1, 0.0)],
        "b/loss": [(1, 1.0)],
        "eval/loss": [(1, 2.0)],
        "b/eval/loss": [(1, 3.0)],
        "runs/loss": [(1, 4.0)],
    }


def test_the_scalars_of_threads_that_log_while_the_run_begins_are_rows(
    tmp_path: Path,
) -> None:
    code = """
    import threading
    from tensorboardX import SummaryWriter

    writer = SummaryWriter("events")
    together = threading.Barrier(4)

    def actor(number):
        together.wait()
        writer.add_scalar(f"actor_{number}/loss", 0.5, number)

    threads = [threading.Thread(target=actor, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    """

    captured(tmp_path, code)

    assert values(only_folder(runs(tmp_path))) == {
        f"actor_{number}/loss": [(number, 0.5)] for number in range(4)
    }


def test_a_setting_that_cannot_be_used_is_printed_once_and_the_event_files_are_written(
    tmp_path: Path,
) -> None:
    script = program(
        tmp_path,
        "t.py",
        "import otel_bridge\notel_bridge.capture('tensorboard')\n" + TENSORBOARDX,
    )

    done = call(
        [PYTHON, script],
        cwd=tmp_path,
        env={**environment(tmp_path), "OTEL_BRIDGE_EXPORTERS": "wandbb"},
    )

    assert done.returncode == 0, done.stderr
    assert (
        done.stderr.count(
            "TensorBoard's scalars are not recorded: exporter 'wandbb' is not known"
        )
        == 1
    )
    assert len(scalars_of(tmp_path / "events")["charts/SPS"]) == 3


@pytest.mark.parametrize("reinit", ["True", "'create_new'"])
def test_each_synced_run_of_wandb_has_its_own_first_folder_and_nothing_else_is_recorded(
    tmp_path: Path, reinit: str
) -> None:
    code = f"""
    import wandb
    from tensorboardX import SummaryWriter
    for seed in range(2):
        run = wandb.init(project="p", name=f"seed{{seed}}", sync_tensorboard=True, reinit={reinit})
        with SummaryWriter(f"runs/seed{{seed}}") as writer:
            writer.add_scalar("loss", seed, 5)
        run.finish()
    with SummaryWriter("runs/late") as writer:
        writer.add_scalar("late", 1, 5)
    """
    command = [
        "run",
        "--exporters",
        "file",
        "--capture",
        "wandb",
        "--",
        "python",
        program(tmp_path, "t.py", code),
    ]

    done = otel_bridge(
        *command,
        cwd=tmp_path,
        env=environment(tmp_path, WANDB_BASE_URL="http://127.0.0.1:9"),
    )

    assert done.returncode == 0, done.stderr
    assert sorted(str(values(folder)) for folder in run_folders(runs(tmp_path))) == [
        "{'loss': [(5, 0.0)]}", "{'loss': [(5, 1.0)]}"
    ]  # fmt: skip


def test_scalars_after_the_end_of_the_programs_run_begin_no_other(
    tmp_path: Path,
) -> None:
    code = """
import otel_bridge
otel_bridge.init("p", "mine").log({"loss": 1.0}, step=1)
otel_bridge.finish()
"""

    captured(tmp_path, code + TENSORBOARDX)

    assert values(only_folder(runs(tmp_path))) == {"loss": [(1, 1.0)]}
    assert len(scalars_of(tmp_path / "events")["charts/SPS"]) == 3


def test_the_first_scalar_begins_the_run_that_an_adapter_has_named(
    tmp_path: Path,
) -> None:
    code = """
from otel_bridge.adapters.parts.framework_run import FrameworkRun, RunNames
adapter = FrameworkRun("Lightning", RunNames("mine", "one"), {"lr": 0.1})
"""

    captured(tmp_path, code + TENSORBOARDX + "adapter.finish()\n")

    report = report_of(runs(tmp_path))
    assert (report.project, report.name, report.status) == ("mine", "one", "finished")


class _Writer:
    """Stands for an ``EventFileWriter`` that is made, and extended by `install`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def get_logdir(self) -> str:
        return self._folder

    def add_event(self, event: object) -> None:
        """Write nothing."""

    def close(self) -> None:
        """Close nothing."""


def test_writers_that_other_threads_open_do_not_disturb_a_scalar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("events")
    monkeypatch.setattr(module, "EventFileWriter", _Writer, raising=False)
    tensorboard.install(module, "tee")
    kept = [_Writer(f"/events/{number}") for number in range(30)]
    is_over = threading.Event()

    def open_writers() -> None:
        while not is_over.is_set():
            _Writer("/other").close()

    interval = sys.getswitchinterval()
    # The threads change places in the middle of almost every loop.
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=open_writers)
    thread.start()
    try:
        tops = {
            tensorboard._top_folder("/events/7/eval")  # what each first scalar asks
            for _ in range(20_000)
        }
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(interval)

    assert (tops, len(kept)) == ({"/events/7"}, 30)
