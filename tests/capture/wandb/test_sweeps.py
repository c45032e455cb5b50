"""W&B's sweeps under its capture, with the real agents; a server stands in for W&B's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from otel_bridge.exporter import RunInfo
from support.trackers import trackio_store
from support.trackers.wandb_backend.server import WandbServer
from support.trainers.command_runs import started, statuses, until
from support.trainers.sweep_runs import AGENT, SweepRuns, points, shown

pytestmark = pytest.mark.slow

TRAIN = """
    def train():
        with wandb.init(project="ignored", config={"lr": 9.0, "own": 1}) as run:
            wandb.config.update({"lr": 5.0})
            print("trial", run.id, run.project, run.entity, run.sweep_id, run.sweep_url.rpartition("/")[2], run.group)
            for step in range(3):
                run.log({"loss": wandb.config.lr * (step + 1)})
"""
GRID = {"method": "grid", "parameters": {"lr": {"values": [0.5, 0.25, 1.0]}}}
BAYES = {
    "method": "bayes",
    "metric": {"name": "loss", "goal": "minimize"},
    "parameters": {"lr": {"min": 1.0, "max": 2.0}},
}
TRIALS = ["sweep0t0", "sweep0t1", "sweep0t2"]


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[Callable[..., SweepRuns]]:
    """Makes a folder with a server of its own."""
    with ExitStack() as stack:

        def begin(exporters: str = "", **variables: str) -> SweepRuns:
            folder = tmp_path / (exporters.replace(",", "-") or "real")
            folder.mkdir()
            return SweepRuns(
                folder, stack.enter_context(WandbServer()), exporters, variables
            )

        yield begin


def printed(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("trial ")]


def test_trials_are_runs_of_their_own_with_the_servers_config_and_w_and_b_gets_none_of_their_metrics(
    begun: Callable[..., SweepRuns],
) -> None:
    real, captured = begun(), begun("file")
    ran = [
        printed(each.call("python", each.program(TRAIN), each.create(**GRID)))
        for each in (real, captured)
    ]

    expected = {run_id: run.config for run_id, run in real.at_server().items()}
    assert (
        ran[0]
        == ran[1]
        == [f"trial {run} swept stand-in sweep0 sweep0 " for run in TRIALS]
    )
    assert captured.recorded_configs() == expected == {
        run: {"lr": lr, "own": 1} for run, lr in zip(TRIALS, (0.5, 0.25, 1.0), strict=True)
    }  # fmt: skip
    assert captured.recorded_points() == {
        run_id: points(run) for run_id, run in real.at_server().items()
    }
    assert [statuses(folder) for folder in captured.recorded().values()] == [
        ["finished"]
    ] * 3
    assert captured.sent() == []


@pytest.mark.long
def test_with_the_exporter_wandb_each_trial_is_the_very_run_that_the_agent_names(
    begun: Callable[..., SweepRuns], tmp_path: Path
) -> None:
    real, captured = (
        begun(),
        begun("wandb,trackio", TRACKIO_DIR=str(tmp_path / "trackio")),
    )
    for each in (real, captured):
        each.call("python", each.program(TRAIN), each.create(**GRID))

    at_server = captured.at_server()
    assert {run_id: shown(run) for run_id, run in at_server.items()} == {
        run_id: shown(run) for run_id, run in real.at_server().items()
    }
    for run_id, run in at_server.items():
        first, info = run.upserts[0], RunInfo(run_id, "swept", run_id, captured.folder)
        assert (first.variables["sweep"], first.config["lr"]["value"]) == (
            "sweep0",
            run.config["lr"],
        )
        assert (
            trackio_store.config_in(tmp_path / "trackio", info).items()
            >= {**run.config, "_Group": "sweep0"}.items()
        )
        rows = trackio_store.rows_in(tmp_path / "trackio", info)
        assert [row["loss"] for row in rows] == [
            value for _, value in points(run)["loss"]
        ]


@pytest.mark.long
def test_a_bayes_sweep_has_each_trials_metric_before_the_next_one_by_the_exporter_wandb(
    begun: Callable[..., SweepRuns],
) -> None:
    real, captured, elsewhere = begun(), begun("wandb"), begun("file")
    outputs = [
        each.call("python", each.program(TRAIN), each.create(**BAYES))
        for each in (real, captured, elsewhere)
    ]

    assert captured.sweep().trials == real.sweep().trials
    assert captured.sweep().seen == real.sweep().seen
    assert [None not in found for found in real.sweep().seen] == [True, True]
    assert elsewhere.sweep().seen == [[None], [None, None]]
    assert ["bayes and early stopping do not" in output for output in outputs] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    "exporters", ["file", pytest.param("wandb", marks=pytest.mark.long)]
)
def test_the_trials_that_the_command_wandb_agent_starts_are_captured(
    begun: Callable[..., SweepRuns], exporters: str
) -> None:
    each = begun(exporters)
    each.program(
        TRAIN, "import wandb\n{train}\nif __name__ == '__main__':\n    train()\n"
    )
    sweep = each.create(
        method="grid", program="train.py", parameters={"lr": {"values": [0.5]}}
    )

    output = each.call("wandb", "agent", sweep)

    loss = {"loss": [(0, 0.5), (1, 1.0), (2, 1.5)]}
    assert printed(output) == ["trial sweep0t0 swept stand-in sweep0 sweep0 "]
    if exporters == "file":
        assert each.recorded_points() == {"sweep0t0": loss}
        assert each.sent() == []
    else:
        (run,) = each.at_server().values()
        assert (run.id, run.sweep, run.state, points(run)) == (
            "sweep0t0",
            "sweep0",
            "finished",
            loss,
        )


ENDS = """
    def train():
        with wandb.init() as run:
            kind = wandb.config.kind
            run.log({"loss": 1.0})
            if kind == "raises":
                raise ValueError("diverged")
            if kind == "is stopped":
                open("running", "w").close()
                while True:  # faster than any pause: the agent's exception comes while a row is recorded
                    run.log({"loss": 2.0})
"""


@pytest.mark.parametrize(
    "exporters",
    [
        pytest.param("", marks=pytest.mark.long),
        "file",
        pytest.param("wandb", marks=pytest.mark.long),
    ],
)
def test_a_trial_that_raises_or_is_stopped_by_the_server_has_failed_and_the_next_one_runs(
    begun: Callable[..., SweepRuns], exporters: str
) -> None:
    each = begun(exporters)
    sweep = each.create(
        method="grid", parameters={"kind": {"values": ["raises", "is stopped", "ends"]}}
    )
    command = each.command("python", each.program(ENDS), sweep)

    with started(command, cwd=each.folder, env=each.environment()) as process:
        until((each.folder / "running").exists, "the trial that is to be stopped")
        with each.server.store.lock:
            each.sweep().stopping.append("sweep0t1")
        output = "".join(process.communicate())

    assert process.returncode == 0, output
    assert not exporters or len(each.recorded()) == 3
    assert "ValueError: diverged" in output
    if exporters == "file":
        ends = {run_id: statuses(folder) for run_id, folder in each.recorded().items()}
    else:
        ends = {run_id: [run.state] for run_id, run in each.at_server().items()}
    assert ends == {
        "sweep0t0": ["failed"],
        "sweep0t1": ["failed"],
        "sweep0t2": ["finished"],
    }


READ = """
    import atexit

    @atexit.register
    def read():
        api = wandb.Api()
        sweep = api.sweep(sys.argv[1])
        ids = sorted(run.id for run in sweep.runs)
        print("read", ids, [run.id for run in api.runs("stand-in/swept", filters={"name": "sweep0t1"})])
        run = api.run("stand-in/swept/sweep0t1")
        losses = [row["loss"] for row in run.history(pandas=False)]
        print("read", run.state, run.sweep.id, sorted(run.config.items()), losses)
"""


@pytest.mark.long
def test_a_captured_program_reads_runs_and_sweeps_of_the_server(
    begun: Callable[..., SweepRuns],
) -> None:
    each = begun("wandb")

    output = each.call("python", each.program(TRAIN + READ), each.create(**GRID))

    assert [line for line in output.splitlines() if line.startswith("read ")] == [
        f"read {TRIALS} ['sweep0t1']",
        "read finished sweep0 [('lr', 0.25), ('own', 1)] [0.25, 0.5, 0.75]",
    ]


@pytest.mark.long
def test_a_trial_whose_bridge_is_its_own_is_written_into_a_run_that_the_server_calls_running(
    begun: Callable[..., SweepRuns],
) -> None:
    each = begun(OTEL_BRIDGE_EXPORTERS="wandb")
    each.server.resolver.sweeps.initial_state = "running"
    whole = AGENT.replace(
        "import sys, wandb",
        "import otel_bridge, sys, wandb\notel_bridge.capture('wandb')",
    )

    each.call("python", each.program(TRAIN, whole), each.create(**GRID))

    at_server = each.at_server()
    assert list(each.recorded()) == TRIALS
    until(
        lambda: all(run.state == "finished" for run in at_server.values()),
        "the end of the trials",
    )
    assert [
        (run.sweep, run.config["lr"], points(run)["loss"][0])
        for run in at_server.values()
    ] == [("sweep0", lr, (0, lr)) for lr in (0.5, 0.25, 1.0)]


@pytest.mark.long
def test_a_program_of_otel_bridge_itself_is_the_trial_that_the_agent_names(
    begun: Callable[..., SweepRuns],
) -> None:
    each = begun(OTEL_BRIDGE_EXPORTERS="wandb")
    each.program(
        """
        import otel_bridge, sys
        with otel_bridge.init(config={"lr": float(sys.argv[1].partition("=")[2])}) as run:
            run.log({"loss": 2.0}, step=0)
        """,
        "{train}",
    )

    each.call(
        "wandb",
        "agent",
        each.create(
            method="grid", program="train.py", parameters={"lr": {"values": [0.5]}}
        ),
    )

    (run,) = each.at_server().values()
    assert (run.id, run.sweep, run.state, run.config) == (
        "sweep0t0",
        "sweep0",
        "finished",
        {"lr": 0.5},
    )
    assert points(run) == {"loss": [(0, 2.0)]}
