"""Attribute names for messages, tools, tokens, models and kinds in the tracing conventions in use.

Each convention has one module with tables only; `registry` holds all conventions. Pure.
"""

from otel_bridge.conventions.convention import GENERATION, SPAN, TOOL, Convention
from otel_bridge.conventions.registry import CONVENTIONS, is_content, is_name, switch_of

__all__ = [
    "CONVENTIONS",
    "GENERATION",
    "SPAN",
    "TOOL",
    "Convention",
    "is_content",
    "is_name",
    "switch_of",
]
