"""Trials of a W&B sweep: which run the sweep's agent names, and with which config, by wandb's settings.

The agent sets ``WANDB_SWEEP_ID``, ``WANDB_RUN_ID`` and ``WANDB_SWEEP_PARAM_PATH`` for each trial
(agents/pyagent.py, wandb_agent.py). The server already has the trial's run, and decides the next
trials by the metrics of that run.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from otel_bridge.emit.console import notify
from otel_bridge.emit.run import Run

_DEFAULT_PROJECT = "uncategorized"
_TO_W_AND_B = frozenset({"wandb", "otlp"})
"""Exporters that lead to W&B, ``otlp`` by way of another bridge."""
_notified: set[str] = set()


@dataclass(frozen=True, slots=True)
class SweepTrial:
    """Describes the trial that this process runs.

    Attributes:
        sweep_id: The sweep.
        run_id: The run that the agent names.
        project: The project of the sweep; that of the program is ignored, as in W&B.
        entity: The entity; empty for the default of the API key.
    """

    sweep_id: str
    run_id: str
    project: str
    entity: str

    def arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments *arguments* to ``init()`` with what the sweep decides."""
        return {
            **arguments,
            "id": self.run_id,
            "project": self.project,
            "entity": self.entity,
        }

    def notify(self, exporters: tuple[str, ...]) -> None:
        """Print once for each sweep that W&B gets no metrics, unless one of *exporters* leads there.

        W&B's server chooses by the metrics of its own run, which this mode sends only by an
        exporter.
        """
        if self.sweep_id in _notified or not _TO_W_AND_B.isdisjoint(exporters):
            return
        # Once a sweep: each of its trials comes here.
        _notified.add(self.sweep_id)
        notify(
            f"W&B's sweep {self.sweep_id} gets no metrics: grid and random search work, "
            "bayes and early stopping do not; add the exporter wandb, or set OTEL_BRIDGE_CAPTURE_MODE=tee",
            always=True,
        )


def stoppable(log: Callable[..., None], run: Run) -> Callable[..., None]:
    """Return *log* for a trial, which the agent may stop by an exception in the trial's thread.

    ``_terminate_thread`` of wandb/agents/pyagent.py raises it once, wherever the thread is. Inside
    *log* it would only be counted as a drop, and the trial would continue.

    Only after a drop: else the agent's exception has passed through, or is still to come, and a
    second one would meet the program's own handling of the first.

    Args:
        log: Records one row.
        run: The run that it records.
    """

    @functools.wraps(log)
    def logged(*arguments: Any, **keywords: Any) -> None:
        """Record one row; raises for a trial that the agent stopped meanwhile."""
        drops_before = _drop_count(run)
        log(*arguments, **keywords)
        if (
            getattr(threading.current_thread(), "_terminated", False)
            and _drop_count(run) > drops_before
        ):
            # The class that the agent raises.
            raise Exception("the sweep's agent stopped this trial")

    return logged


def _drop_count(run: Run) -> int:
    """Return how much *run* has dropped so far.

    0 where it records nothing, so that no trial is stopped.
    """
    if run.recorder is None:
        return 0
    return sum(run.recorder.drops.counts.values())


def current_trial(package: Any) -> SweepTrial | None:
    """Return the trial that this process runs by the settings of *package*, ``None`` outside a sweep.

    The settings name it in the agent's process and in the processes that it starts; W&B's own
    ``init()`` reads them in the same way.
    """
    settings = package.sdk.wandb_setup.singleton().settings
    if not settings.sweep_id:
        return None
    return SweepTrial(
        sweep_id=str(settings.sweep_id),
        run_id=str(settings.run_id or package.util.generate_id()),
        project=str(settings.project or _DEFAULT_PROJECT),
        entity=str(settings.entity or ""),
    )
