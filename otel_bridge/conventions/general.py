"""Names outside the GenAI conventions: our own, agent-lightning's, and OpenTelemetry's general names.

Source: OpenTelemetry semantic conventions 1.41; `otel_bridge.semconv`; agent-lightning 0.3.
"""

from __future__ import annotations

from otel_bridge import semconv
from otel_bridge.conventions.convention import Convention

GENERAL = Convention(
    title="OpenTelemetry",
    names=frozenset({
        *(
            value
            for value in vars(semconv).values()
            if isinstance(value, str)
            and value.startswith(("rl.", "nemo."))
            and not value.startswith((semconv.METADATA_PREFIX, semconv.TOOL_PREFIX, semconv.REWARDS_PREFIX))
        ),
        "agentlightning.attempt_id", "agentlightning.rollout_id", "client.address", "code.filepath", "code.file.path",
        "code.function", "code.function.name", "code.lineno", "code.namespace", "db.operation.name", "db.system",
        "db.system.name", "error.type", "event.name", "exception.escaped", "exception.type", "http.method",
        "http.request.method", "http.response.status_code", "http.route", "http.status_code", "log.iostream",
        "messaging.operation.name", "messaging.system", "network.peer.address", "network.protocol.name",
        "network.protocol.version", "network.transport", "network.type", "otel.library.name", "otel.scope.name",
        "otel.scope.version", "otel.status_code", "rpc.method", "rpc.service", "rpc.system", "rpc.system.name",
        "server.address", "server.port", "thread.id", "thread.name", "url.scheme",
    }),
    span_words=frozenset({"DELETE", "GET", "HTTP", "POST", "PUT", "step", "train"}),
    content=frozenset({"exception.message", "exception.stacktrace"}),
)  # fmt: skip

RESOURCE_PREFIXES = (
    "agentlightning.", "cloud.", "container.", "deployment.", "faas.", "host.", "k8s.", "nemo.", "os.", "otel.",
    "process.", "rl.", "service.", "telemetry.", "vcs.", "webengine.",
)  # fmt: skip
"""Prefixes of resource attributes that describe a process and its place."""
