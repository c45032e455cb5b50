"""OpenInference (Arize).

Source: openinference-semantic-conventions 0.1.42, openinference-instrumentation-openai 0.1.66,
-langchain 0.1.80.
"""

from __future__ import annotations

from otel_bridge.conventions.convention import GENERATION, SPAN, TOOL, Convention

_KINDS = {"llm": GENERATION, "tool": TOOL}

OPENINFERENCE = Convention(
    title="OpenInference",
    scopes=("openinference.",),
    switch="OPENINFERENCE_HIDE_INPUTS=false and OPENINFERENCE_HIDE_OUTPUTS=false",
    names=frozenset({
        "agent.name", "embedding.model_name", "graph.node.id", "graph.node.parent_id", "input.mime_type",
        "llm.finish_reason", "llm.model_name", "llm.provider", "llm.system", "openinference.span.kind",
        "output.mime_type", "reranker.model_name", "session.id", "tool.id", "tool.name", "tool_call.function.name",
        "tool_call.id",
    }),
    content=frozenset({
        "input.value", "llm.function_call", "llm.invocation_parameters", "llm.prompt_template.template",
        "llm.prompt_template.variables", "output.value", "reranker.query", "tool.description", "tool.json_schema",
        "tool.parameters",
    }),
    content_prefixes=(
        "embedding.embeddings.", "llm.input_messages.", "llm.output_messages.", "llm.prompts", "llm.completions",
        "llm.tools.", "retrieval.documents.",
    ),
    kinds={"openinference.span.kind": {**_KINDS, "agent": SPAN, "chain": SPAN}},
    rollouts=frozenset({"llm", "agent"}),
    flat=(("llm.input_messages.", "llm.output_messages."),),
    inputs=("input.value",),
    outputs=("output.value",),
    arguments=("input.value", "tool.parameters"),
    results=("output.value",),
    models=("llm.model_name",),
    input_tokens=("llm.token_count.prompt",),
    output_tokens=("llm.token_count.completion",),
    finish_reasons=("llm.finish_reason",),
)  # fmt: skip
