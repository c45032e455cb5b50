"""Mode ``tee``: W&B's own run continues, and what it is given is recorded as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from otel_bridge.capture.wandb.recording import WandbRecording
from otel_bridge.capture.wandb.run import NOT_RECORDED, define_metric


def copy_too(package: Any, run: Any, recording: WandbRecording) -> None:
    """Let W&B's own *run* record what it is given in *recording* as well.

    Args:
        package: The package ``wandb``.
        run: Its run, begun just now.
        recording: Records the copy.
    """
    calls = _calls(run, recording)
    for name, call in calls.items():
        setattr(run, name, call)
        # wandb.init() has bound `wandb.log` and the others to the methods of its run.
        if package.run is run and hasattr(package, name):
            setattr(package, name, call)
    real_metric = run._metric_callback
    real_config = run._config_callback
    real_summary = run._summary_update_callback

    def note_metric(record: Any) -> None:
        """Define a metric in both."""
        define_metric(recording, record)
        real_metric(record)

    def note_config(key: Any = None, val: Any = None, data: Any = None) -> None:
        """Change the config of both."""
        recording.config_callback(key, val, data)
        real_config(key=key, val=val, data=data)

    def note_summary(record: Any) -> None:
        """Change the summary of both."""
        for item in record.update:
            recording.summary(_nested(item.key, item.value))
        real_summary(record)

    run._metric_callback = note_metric
    run._config._set_callback(note_config)
    run.summary._set_update_callback(note_summary)
    # What init() was given was set before the callbacks above.
    recording.config(dict(run.config.items()))


def _calls(run: Any, recording: WandbRecording) -> dict[str, Callable[..., Any]]:
    """Return the methods of *run* that record too, and those that are counted as not captured."""
    real_log = run.log
    real_finish = run.finish
    real_alert = run.alert

    def log(data: Any, step: Any = None, commit: Any = None, **keywords: Any) -> None:
        """Record a row in both."""
        recording.log(data, step, commit)
        real_log(data, step=step, commit=commit, **keywords)

    def finish(exit_code: Any = None, **keywords: Any) -> None:
        """Finish both."""
        real_finish(exit_code=exit_code, **keywords)
        recording.finish(exit_code)

    def alert(
        title: Any, text: Any, level: Any = None, wait_duration: Any = None
    ) -> None:
        """Raise the alert in both."""
        recording.alert(title, text, level, wait_duration)
        real_alert(title=title, text=text, level=level, wait_duration=wait_duration)

    counted = {name: getattr(run, name) for name in NOT_RECORDED if hasattr(run, name)}
    counted_calls = {
        name: _counted(name, call, recording) for name, call in counted.items()
    }
    return {**counted_calls, "log": log, "finish": finish, "alert": alert}


def _counted(
    name: str, call: Callable[..., Any], recording: WandbRecording
) -> Callable[..., Any]:
    def counted(*arguments: Any, **keywords: Any) -> Any:
        """Call W&B; the copy has no counterpart, which is counted."""
        recording.not_captured(f"wandb.run.{name}")
        return call(*arguments, **keywords)

    return counted


def _nested(path: Any, value: Any) -> dict[str, Any]:
    """Return a summary with one value, whose keys are *path*, from the outermost one."""
    names: list[str] = [path] if isinstance(path, str) else list(path)
    entries: dict[str, Any] = {names[-1]: value}
    for name in reversed(names[:-1]):
        entries = {name: entries}
    return entries
