"""Registry of every convention, and lookup of an attribute or scope in all of them. Pure."""

from __future__ import annotations

from functools import lru_cache

from otel_bridge import semconv
from otel_bridge.conventions.convention import Convention
from otel_bridge.conventions.gen_ai import GEN_AI
from otel_bridge.conventions.general import GENERAL
from otel_bridge.conventions.mlflow_tracing import MLFLOW
from otel_bridge.conventions.openinference import OPENINFERENCE
from otel_bridge.conventions.pydantic_ai import PYDANTIC_AI
from otel_bridge.conventions.traceloop import TRACELOOP
from otel_bridge.conventions.vercel_ai import VERCEL_AI

CONVENTIONS: tuple[Convention, ...] = (
    GEN_AI, OPENINFERENCE, TRACELOOP, PYDANTIC_AI, MLFLOW, VERCEL_AI, GENERAL,
)  # fmt: skip
"""Conventions in order of preference: for one span an earlier convention wins."""

_NAMES = frozenset(name for convention in CONVENTIONS for name in convention.names)
_CONTENT = frozenset(name for convention in CONVENTIONS for name in convention.content)
_CONTENT_PREFIXES = tuple(
    prefix for convention in CONVENTIONS for prefix in convention.content_prefixes
)
SPAN_WORDS = frozenset(
    word for convention in CONVENTIONS for word in convention.span_words
)
"""Words in the names of spans that are not from a prompt."""
_REWARD = "agentlightning.reward."


# Hot path: the same few keys come with each span. Bounded, because keys come over the wire.
@lru_cache(maxsize=4096)
def is_content(key: str) -> bool:
    """Return whether the attribute *key* holds input or output of a model, or an error's text."""
    return key in _CONTENT or key.startswith(_CONTENT_PREFIXES)


@lru_cache(maxsize=4096)
def is_name(key: str) -> bool:
    """Return whether a text of the attribute *key* is a name, an id or an enumeration."""
    # agent-lightning 0.3 flattens rewards: agentlightning.reward.0.name.
    return key in _NAMES or (key.startswith(_REWARD) and key.endswith(".name"))


def switch_of(scope: str) -> str:
    """Return the setting by which the instrumentation *scope* records content.

    Empty when none is known.
    """
    matching = (
        convention for convention in CONVENTIONS if scope.startswith(convention.scopes)
    )
    # "opentelemetry.instrumentation.langchain" is OpenLLMetry's, though a shorter prefix is
    # OpenTelemetry's.
    longest = max(
        matching, key=lambda convention: _match(convention, scope), default=None
    )
    if longest is None:
        return ""
    return longest.switch


def _match(convention: Convention, scope: str) -> int:
    return max(len(prefix) for prefix in convention.scopes if scope.startswith(prefix))


USER_FACT_PREFIXES = (semconv.METADATA_PREFIX, semconv.TOOL_PREFIX)
"""Prefixes of attributes in which users put facts of a rollout or tool."""
