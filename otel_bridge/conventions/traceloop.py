"""OpenLLMetry (Traceloop), whose newer versions use the GenAI conventions too.

Source: opentelemetry-semantic-conventions-ai 0.5.1, opentelemetry-instrumentation-openai and
-langchain 0.62.4.
"""

from __future__ import annotations

from otel_bridge.conventions.convention import GENERATION, SPAN, TOOL, Convention

_LIBRARIES = (
    "alephalpha", "anthropic", "bedrock", "cohere", "crewai", "google_generativeai", "groq", "haystack", "langchain",
    "llamaindex", "mistralai", "ollama", "openai.v", "replicate", "sagemaker", "together", "transformers", "vertexai",
    "watsonx", "writer",
)  # fmt: skip

TRACELOOP = Convention(
    title="OpenLLMetry (Traceloop)",
    # The general prefix is shared with OpenTelemetry's own instrumentations, which differ in names.
    scopes=("traceloop.", *(f"opentelemetry.instrumentation.{name}" for name in _LIBRARIES)),
    switch="TRACELOOP_TRACE_CONTENT=true",
    names=frozenset({
        "gen_ai.task.id", "gen_ai.task.kind", "gen_ai.task.name", "gen_ai.task.parent.id", "gen_ai.task.status",
        "llm.request.type", "traceloop.association.properties.ls_integration",
        "traceloop.association.properties.ls_model_name", "traceloop.association.properties.ls_model_type",
        "traceloop.association.properties.ls_provider", "traceloop.entity.name", "traceloop.entity.path",
        "traceloop.entity.version", "traceloop.span.kind", "traceloop.workflow.name",
    }),
    span_words=frozenset({"execute_task"}),
    content=frozenset({
        "gen_ai.task.input", "gen_ai.task.output", "traceloop.entity.input", "traceloop.entity.output",
        "traceloop.prompt.template", "traceloop.prompt.template_variables",
    }),
    content_prefixes=("gen_ai.completion.", "gen_ai.prompt.", "llm.request.functions."),
    kinds={
        "llm.request.type": {"chat": GENERATION, "completion": GENERATION},
        "traceloop.span.kind": {"agent": SPAN, "llm": GENERATION, "task": SPAN, "tool": TOOL, "workflow": SPAN},
    },
    rollouts=frozenset({"agent", "chat", "completion", "llm"}),
    flat=(("gen_ai.prompt.", "gen_ai.completion."),),
    inputs=("traceloop.entity.input",),
    outputs=("traceloop.entity.output",),
    arguments=("traceloop.entity.input",),
    results=("traceloop.entity.output",),
    finish_reasons=("gen_ai.completion.0.finish_reason",),
)  # fmt: skip
