"""Attribute names of the tracing conventions in use: what each one calls messages, tools, tokens, models and kinds.

One module a convention, tables only; `registry` holds all of them. Pure.
"""

from otel_bridge.conventions.convention import GENERATION, SPAN, TOOL, Convention
from otel_bridge.conventions.registry import CONVENTIONS, is_content, is_name, switch_of

__all__ = ["CONVENTIONS", "GENERATION", "SPAN", "TOOL", "Convention", "is_content", "is_name", "switch_of"]
