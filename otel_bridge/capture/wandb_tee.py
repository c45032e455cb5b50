"""Mode ``tee`` of the capture of wandb: W&B's own run goes on, and what it is given is recorded too."""

from __future__ import annotations

from typing import Any

from otel_bridge.capture.wandb_recording import WandbRecording
from otel_bridge.emit.run import Run


def copy_too(package: Any, run: Any, recorded: Run) -> None:
    """Let W&B's own *run* record what it is given in *recorded* as well.

    Args:
        package: The package ``wandb``.
        run: Its run, begun just now.
        recorded: The run of otel-bridge.
    """
    recording = WandbRecording(recorded)
    real_log, real_finish, real_metric = run.log, run.finish, run._metric_callback
    real_config = run._config_callback

    def log(data: Any, step: Any = None, commit: Any = None, **named: Any) -> None:
        """Record a row in both."""
        recording.log(data, step, commit)
        real_log(data, step=step, commit=commit, **named)

    def finish(exit_code: Any = None, **named: Any) -> None:
        """Finish both."""
        real_finish(exit_code=exit_code, **named)
        recording.finish(exit_code)

    def note_metric(record: Any) -> None:
        """Define a metric in both."""
        recording.define_metric(record.glob_name or record.name, record.step_metric or None)
        real_metric(record)

    def note_config(key: Any = None, val: Any = None, data: Any = None) -> None:
        """Change the config of both."""
        recording.config_callback(key, val, data)
        real_config(key=key, val=val, data=data)

    run.log, run.finish, run._metric_callback = log, finish, note_metric
    run._config._set_callback(note_config)
    if package.run is run:
        package.log = log
    recording.config(dict(run.config.items()))
