"""OpenTelemetry in, one run in Weights & Biases, MLflow and Trackio out.

Importing this starts nothing and imports no tracker; each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_bridge.capture.hook import capture
    from otel_bridge.content.user_function import redact_with
    from otel_bridge.emit.api import (
        alert,
        current_run,
        env,
        finish,
        flush,
        init,
        log,
        log_config,
        log_generations,
        log_reward,
        log_rewards,
        log_rollouts,
        rollout,
        summary,
    )
    from otel_bridge.emit.encode.histogram import Histogram
    from otel_bridge.emit.media.values import (
        Audio,
        Html,
        Image,
        Markdown,
        Table,
        Text,
        Video,
    )
    from otel_bridge.emit.phases.phase import Phase, phase
    from otel_bridge.emit.rollouts.context import attach_context, get_context
    from otel_bridge.emit.rollouts.live import LiveRollout, chat, tool
    from otel_bridge.emit.rollouts.live_spans import ChatSpan, ToolSpan
    from otel_bridge.emit.rollouts.rollout import Rollout
    from otel_bridge.emit.run import Run
    from otel_bridge.errors import ConfigError, MissingExtraError, OtelBridgeError

__all__ = [
    "Audio",
    "ChatSpan",
    "ConfigError",
    "Histogram",
    "Html",
    "Image",
    "LiveRollout",
    "Markdown",
    "MissingExtraError",
    "OtelBridgeError",
    "Phase",
    "Rollout",
    "Run",
    "Table",
    "Text",
    "ToolSpan",
    "Video",
    "alert",
    "attach_context",
    "capture",
    "chat",
    "current_run",
    "env",
    "finish",
    "flush",
    "get_context",
    "init",
    "log",
    "log_config",
    "log_generations",
    "log_reward",
    "log_rewards",
    "log_rollouts",
    "phase",
    "redact_with",
    "rollout",
    "summary",
    "tool",
]

_HOMES = {
    "ChatSpan": "otel_bridge.emit.rollouts.live_spans",
    "ConfigError": "otel_bridge.errors",
    "Histogram": "otel_bridge.emit.encode.histogram",
    "LiveRollout": "otel_bridge.emit.rollouts.live",
    "MissingExtraError": "otel_bridge.errors",
    "OtelBridgeError": "otel_bridge.errors",
    "Phase": "otel_bridge.emit.phases.phase",
    "Rollout": "otel_bridge.emit.rollouts.rollout",
    "Run": "otel_bridge.emit.run",
    "Html": "otel_bridge.emit.media.values",
    "Image": "otel_bridge.emit.media.values",
    "Markdown": "otel_bridge.emit.media.values",
    "Table": "otel_bridge.emit.media.values",
    "Text": "otel_bridge.emit.media.values",
    "ToolSpan": "otel_bridge.emit.rollouts.live_spans",
    "Audio": "otel_bridge.emit.media.values",
    "Video": "otel_bridge.emit.media.values",
    "attach_context": "otel_bridge.emit.rollouts.context",
    "chat": "otel_bridge.emit.rollouts.live",
    "get_context": "otel_bridge.emit.rollouts.context",
    "phase": "otel_bridge.emit.phases.phase",
    "redact_with": "otel_bridge.content.user_function",
    "tool": "otel_bridge.emit.rollouts.live",
}


def __getattr__(name: str) -> object:
    """Return a public name, from its own module, at the first use; raises `AttributeError` for another name.

    Importing all modules at once would cost each training process time and memory.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "capture":  # the package, which is callable
        return import_module("otel_bridge.capture")
    value: object = getattr(
        import_module(_HOMES.get(name, "otel_bridge.emit.api")), name
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
