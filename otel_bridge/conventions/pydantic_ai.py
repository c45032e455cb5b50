"""pydantic-ai and Logfire, beside the GenAI conventions that both use.

Source: pydantic-ai 1.107 and 2.68, ``InstrumentationSettings`` of versions 1 to 5.
"""

from __future__ import annotations

from otel_bridge.conventions.convention import Convention

PYDANTIC_AI = Convention(
    title="pydantic-ai",
    scopes=("pydantic-ai",),
    switch="InstrumentationSettings(include_content=True)",
    names=frozenset({"agent_name", "logfire.level_num", "logfire.span_type", "model_name"}),
    span_words=frozenset({"agent", "call", "model", "run", "running", "tool", "tools"}),
    content=frozenset({
        "all_messages_events", "events", "final_result", "logfire.json_schema", "logfire.msg", "logfire.msg_template",
        "model_request_parameters", "pydantic_ai.all_messages", "tool_arguments", "tool_response",
    }),
    inputs=("pydantic_ai.all_messages", "all_messages_events", "events"),
    outputs=("final_result",),
    arguments=("tool_arguments",),
    results=("tool_response",),
)  # fmt: skip
