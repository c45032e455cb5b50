"""Id of the run in each tracker: as reported by its writer, else derived from the facts known here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from otel_bridge.emit.drop_reasons import shown_key
from otel_bridge.journal.report import Report

_FROM_ENVIRONMENT = {"wandb": "WANDB_RUN_ID", "mlflow": "MLFLOW_RUN_ID"}
_PROJECTS = {
    "wandb": ("WANDB_PROJECT", "project"),
    "mlflow": ("MLFLOW_EXPERIMENT_NAME", "experiment"),
    "trackio": ("TRACKIO_PROJECT", "project"),
}
_TAKES_OURS = frozenset({"wandb", "trackio"})


def tracker_run_id(
    exporter: str,
    run_id: str,
    env: Mapping[str, str],
    report: Report | None,
    *,
    node_rank: int = 0,
) -> str | None:
    """Return the run's id in *exporter*; ``None`` while only the tracker knows it.

    W&B and Trackio take our id; MLflow makes its own, which the bridge reports once it has opened
    the run.

    Args:
        exporter: Name of the exporter.
        run_id: Our run id.
        env: The environment of the run.
        report: The bridge's last report, if there is one.
        node_rank: Number of this machine; further machines may have a W&B run of their own.
    """
    reported = None if report is None else report.exporters.get(exporter)
    if reported is not None and reported.tracker_run_id:
        return reported.tracker_run_id
    # Settings that only the writer reads decide whether other machines share the id.
    if exporter == "wandb" and node_rank:
        return None
    explicit_id = env.get(_FROM_ENVIRONMENT.get(exporter, ""))
    return explicit_id or (run_id if exporter in _TAKES_OURS else None)


def named_elsewhere(
    exporters: Sequence[str], project: str, env: Mapping[str, str]
) -> list[str]:
    """Return the notes of ``init()`` on trackers whose own variable names another run or project.

    Empty for the usual case: otherwise a person would look for the run where the line of ``init()``
    names it.

    Args:
        exporters: The exporters of the run.
        project: The run's project.
        env: Environment with the trackers' variables.
    """
    notes: list[str] = []
    for exporter in exporters:
        variable = _FROM_ENVIRONMENT.get(exporter, "")
        run_id = env.get(variable, "").strip()
        if run_id:
            notes.append(
                f"{exporter} writes to its run {shown_key(run_id)} ({variable})"
            )
        variable, noun = _PROJECTS.get(exporter, ("", ""))
        other_project = env.get(variable, "").strip()
        # A run's experiment is given with it.
        if (
            other_project
            and other_project != project
            and not (run_id and exporter == "mlflow")
        ):
            notes.append(
                f"{exporter} has the run in the {noun} {shown_key(other_project)} ({variable})"
            )
    return notes
