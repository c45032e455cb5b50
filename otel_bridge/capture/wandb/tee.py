"""Mode ``tee``: W&B's own run continues, and what it is given is recorded as well."""

from __future__ import annotations

from functools import partial
from typing import Any

from otel_bridge.capture.config import both
from otel_bridge.capture.wandb.recording import WandbRecording
from otel_bridge.capture.wandb.run import NOT_RECORDED, record_changes


def copy_too(package: Any, run: Any, recording: WandbRecording) -> None:
    """Let W&B's own *run* record what it is given in *recording* as well.

    W&B's own methods decide what the program sees: their results are returned, and their errors
    raised. Of ``log`` and ``alert`` the copy goes first, so that a failure of W&B costs it nothing.

    Args:
        package: The package ``wandb``.
        run: Its run, begun just now.
        recording: Records the copy.
    """
    calls = {
        "log": both(recording.log, run.log),
        "alert": both(recording.alert, run.alert),
        "finish": both(run.finish, recording.finish),
    }
    for name in NOT_RECORDED:
        if hasattr(run, name):
            calls[name] = both(partial(_count, recording, name), getattr(run, name))
    for name, call in calls.items():
        setattr(run, name, call)
        # wandb.init() has bound `wandb.log` and the others to the methods of its run.
        if package.run is run and hasattr(package, name):
            setattr(package, name, call)
    record_changes(run, recording)
    # What init() was given was set before the callbacks above.
    recording.config(dict(run.config.items()))


def _count(
    recording: WandbRecording, name: str, *_arguments: Any, **_keywords: Any
) -> None:
    """Count a call of W&B's run that has no counterpart in the copy."""
    recording.not_captured(f"wandb.run.{name}")
