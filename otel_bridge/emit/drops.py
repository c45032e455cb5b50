"""What could not be taken: counted by reason, said on stderr at most once a minute."""

from __future__ import annotations

import time
from collections.abc import Mapping

from otel_bridge.emit.lines import say

_SAY_EVERY_S = 60.0

MEANING: Mapping[str, str] = {
    "bad_key": "keys whose str() raised",
    "bad_step": "steps that are no number: the row got the next step",
    "complex": "complex numbers",
    "config_not_a_mapping": "configs that are no mapping",
    "cyclic": "dicts that hold themselves",
    "directory_full": "records beyond OTEL_BRIDGE_MAX_BYTES; free space, or let a tracker catch up",
    "disk_full": "records that the disk had no room for",
    "empty_distribution": "distributions without a finite number",
    "empty_key": "empty keys",
    "figure": (
        "images and figures: MlflowClient().log_image(run.id_in('mlflow'), …) or log_figure(…);"
        " wandb.Image and trackio.Image in a run beside this one, see docs/coming-from.md"
    ),
    "fractional_step": "steps with a fraction: it was cut off",
    "ended": "records after finish()",
    "internal_error": "records that otel-bridge failed on; please report it",
    "long_key": "keys longer than 4,096 characters",
    "mlflow_media": "MLflow objects: MlflowClient().log_artifact(run.id_in('mlflow'), …) or its like takes them",
    "none": "values that are None",
    "not_a_mapping": "calls of log() with something else than a dict",
    "not_finite_in_distribution": "nan and inf within a distribution",
    "not_written": "records that could not be appended",
    "object": "values that are no number: log media with the tracker's own call",
    "late_not_a_mapping": "calls of log_rewards() with something else than a dict",
    "late_value": "rewards that are no number",
    "reentered": "records of a signal handler beyond 10,000",
    "reserved_key": "keys named rl.row",
    "rollout_decode": "texts whose decode function raised: the rollout goes without them",
    "rollout_empty_prompt": "rollouts without a prompt",
    "rollout_message": "entries that are no message",
    "rollout_no_mapping": "rollouts that are neither Rollout nor a dict",
    "rollout_redaction": "texts that the redaction function failed on: they are left out",
    "rollout_reward": "rewards that are no number: the rollout goes without them",
    "rollout_short_list": "entries that a parallel list was too short for",
    "rollout_span": "spans of a rollout that could not be encoded",
    "rollout_step": "steps of rollouts that are no number",
    "rollout_unknown_column": "columns of log_generations() that are not known",
    "rollout_unreadable": "rollouts that raised when they were read",
    "same_key": "values whose flattened key came twice: the last one holds",
    "text": "texts: put them into log_config(), or messages into a rollout",
    "too_deep": "values nested deeper than 32",
    "too_large": "records above 64 MiB",
    "too_large_int": "integers beyond a double",
    "too_many_numbers": "distributions of more than 4,000,000 numbers",
    "trackio_media": (
        "Trackio objects: trackio.init(project=…, name=…) and trackio.log(…) take them in a run beside this one;"
        " of a histogram give the numbers"
    ),
    "unreadable_mapping": "mappings that could not be read",
    "unreadable_value": "values that raised when they were read",
    "wandb_media": (
        "wandb objects: wandb.init(id=…, group=…).log(…) takes them in a run beside this one, never on this one's id;"
        " of a histogram give the numbers"
    ),
}
"""Reason to what the user is told."""


class Drops:
    """Counts of one process. Its owner locks."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._said: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self._say_again = 0.0

    def count(self, reason: str, number: int = 1) -> None:
        """Count *number* drops for *reason*."""
        self.counts[reason] = self.counts.get(reason, 0) + number

    def due(self) -> bool:
        """Tell whether something new was counted and a minute has gone since it was last said."""
        return self.counts != self._said and time.monotonic() >= self._say_again

    def say(self) -> None:
        """Say what was counted since the last time."""
        new = {reason: number - self._said.get(reason, 0) for reason, number in self.counts.items()}
        self._said = dict(self.counts)
        self._say_again = time.monotonic() + _SAY_EVERY_S
        parts = [f"{number} {MEANING.get(reason, reason)} [{reason}]" for reason, number in new.items() if number]
        if parts:
            say(f"dropped: {'; '.join(parts)}", always=True)

    def untold(self) -> dict[str, int] | None:
        """Return all counts when they changed since this was last asked, for the event ``rl.dropped``."""
        if self.counts == self._told:
            return None
        self._told = dict(self.counts)
        return dict(self.counts)
