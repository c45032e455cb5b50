"""The run's id in each tracker: as its writer said it, else as far as it follows from what is known here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from otel_bridge.journal.report import Report

_FROM_ENVIRONMENT: Final = {"wandb": "WANDB_RUN_ID", "mlflow": "MLFLOW_RUN_ID"}
_TAKES_OURS: Final = frozenset({"wandb", "trackio"})


def tracker_run_id(
    exporter: str, run_id: str, env: Mapping[str, str], report: Report | None, *, node_rank: int = 0
) -> str | None:
    """Return the run's id in *exporter*; ``None`` while only the tracker knows it.

    Args:
        exporter: Its name.
        run_id: Our run id.
        env: The environment of the run.
        report: The bridge's last report, if there is one.
        node_rank: Number of this machine: further ones may have a W&B run of their own.
    """
    told = report.exporters.get(exporter) if report is not None else None
    if told is not None and told.tracker_run_id:
        return told.tracker_run_id
    if exporter == "wandb" and node_rank:
        return None
    given = env.get(_FROM_ENVIRONMENT.get(exporter, ""))
    return given or (run_id if exporter in _TAKES_OURS else None)
