"""Takeover of a run from a bridge that is blocked because it lacks credentials that this process has."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping

from otel_bridge.errors import JournalError
from otel_bridge.journal.control import HANDOVER_S, delete_handovers, send_control
from otel_bridge.journal.folder import RunFolder
from otel_bridge.journal.locks import probe
from otel_bridge.journal.report import Report

_POLL_S = 0.02
_CREDENTIALS = {
    "wandb": ("WANDB_API_KEY",),
    "mlflow": ("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "DATABRICKS_TOKEN"),
    "trackio": ("TRACKIO_WRITE_TOKEN", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"),
    "otlp": (
        "OTEL_BRIDGE_TOKEN",
        "OTEL_EXPORTER_OTLP_HEADERS",
        "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
        "OTEL_EXPORTER_OTLP_LOGS_HEADERS",
    ),
}


def has_what_is_missing(report: Report, env: Mapping[str, str]) -> bool:
    """Return whether an exporter is blocked and *env* holds a credential for this exporter.

    A bridge keeps the environment with which it was started, and would stay blocked.
    """
    for name, exporter in report.exporters.items():
        if exporter.state == "blocked" and any(
            map(env.get, _CREDENTIALS.get(name, ()))
        ):
            return True
    return False


def take_over(folder: RunFolder) -> None:
    """Ask the bridge to release *folder*, and wait.

    After ten seconds the bridge is killed, which loses nothing. Nothing happens to a bridge on
    another machine or in another pid namespace, and where the folder cannot be read: `BridgeStarter`
    then finds the lock held. No error reaches the caller.
    """
    with contextlib.suppress(JournalError):
        # Before the request: afterwards the lock may be that of another bridge.
        pid = folder.bridge_pid()
        send_control(folder, "handover")
        deadline = time.monotonic() + HANDOVER_S
        while probe(folder.lock_path):
            if time.monotonic() > deadline:
                if pid and pid == folder.bridge_pid():
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                # This process waits no more: a bridge must not end for its request later.
                delete_handovers(folder)
                return
            time.sleep(_POLL_S)
