"""Ray Tune itself: concurrent trials, one that fails, and an experiment that is restored."""

from __future__ import annotations

from pathlib import Path

from otel_bridge.journal.folder import run_folders
from otel_bridge.journal.report import read_report
from support.trainers.command_runs import records, runs, until
from support.trainers.framework_jobs import TUNE
from support.trainers.framework_runs import (
    NEEDS_REAL,
    config_in,
    rows_of,
    run_captured,
    run_program,
)

pytestmark = NEEDS_REAL
Trials = dict[float, tuple[str, list[tuple[object, ...]]]]


def trials_of(folder: Path) -> Trials:
    """Status and losses of each trial by its learning rate, once all have ended."""

    def found() -> Trials | None:
        reports = {one: read_report(one) for one in run_folders(runs(folder))}
        if not reports or not all(
            report is not None and report.ended for report in reports.values()
        ):
            return None
        return {
            config_in(records(one))["lr"]: (
                report.status,
                rows_of(records(one), "loss"),
            )
            for one, report in reports.items()
            if report is not None
        }

    return until(found, "the end of all trials")


def test_each_trial_is_a_run_and_a_restored_one_goes_on_in_it(tmp_path: Path) -> None:
    space = '{"lr": tune.grid_search([1.0, 2.0, 4.0]), "fails": tune.sample_from(lambda spec: spec.config.lr == 2.0)'
    first = (
        TUNE
        + f'tuner(OtelBridgeLoggerCallback("p"), {space}, "mended": MENDED}}).fit()'
    )
    run_program(tmp_path, first, real=True)

    good = {
        lr: ("finished", [(1, lr), (2, lr * 2), (3, lr * 3)]) for lr in (1.0, 2.0, 4.0)
    }
    assert trials_of(tmp_path) == {**good, 2.0: ("failed", [(1, 2.0), (2, 4.0)])}
    (folder,) = [
        one
        for one in run_folders(runs(tmp_path))
        if config_in(records(one))["lr"] == 2.0
    ]
    config, report = config_in(records(folder)), read_report(folder)
    assert report is not None
    assert (report.project, report.name) == ("p", f"train_{config['tune']['trial_id']}")
    assert config["tune"]["experiment"] == "search"
    assert config["tune"].keys() == {
        "experiment",
        "trial_id",
        "experiment_tag",
        "hostname",
        "node_ip",
        "pid",
    }
    keys = {
        key for one in records(folder) if one["kind"] == "row" for key in one["values"]
    }
    assert keys == {"loss", "time_this_iter_s", "time_total_s"}

    (tmp_path / "mended").touch()
    run_program(
        tmp_path,
        TUNE
        + 'tune.Tuner.restore(str(Path("results/search").resolve()), train, resume_errored=True).fit()',
        real=True,
    )

    assert trials_of(tmp_path) == good


def test_event_files_that_tune_writes_of_its_trials_begin_no_further_run_below_a_capture(
    tmp_path: Path,
) -> None:
    space = '{"lr": tune.grid_search([1.0, 2.0]), "fails": False, "mended": MENDED}'

    run_captured(
        tmp_path,
        "tensorboard",
        TUNE + f'tuner(OtelBridgeLoggerCallback("p"), {space}).fit()',
        real=True,
    )

    assert list((tmp_path / "results" / "search").rglob("events.out.tfevents.*"))
    assert trials_of(tmp_path) == {
        lr: ("finished", [(1, lr), (2, lr * 2), (3, lr * 3)]) for lr in (1.0, 2.0)
    }
