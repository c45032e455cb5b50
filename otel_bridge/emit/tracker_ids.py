"""The run's id in each tracker, as far as it follows from what is known here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_FROM_ENVIRONMENT: Final = {"wandb": "WANDB_RUN_ID", "mlflow": "MLFLOW_RUN_ID"}
# MLflow names its runs itself; its pages are …/#/experiments/<experiment>/runs/<run>.
_MLFLOW_PAGE: Final = re.compile(r"/runs/([0-9a-f]{32})")


def tracker_run_id(exporter: str, run_id: str, env: Mapping[str, str], url: str | None) -> str | None:
    """Return the run's id in *exporter*; ``None`` while only the tracker knows it.

    Args:
        exporter: Its name.
        run_id: Our run id.
        env: The environment of the run.
        url: The run's page, when it is known.
    """
    given = env.get(_FROM_ENVIRONMENT.get(exporter, ""))
    if given:
        return given
    if exporter == "mlflow":
        found = _MLFLOW_PAGE.search(url or "")
        return found[1] if found else None
    return run_id
