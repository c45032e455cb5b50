"""OpenTelemetry's GenAI conventions, and the attributes of earlier versions.

Source: OpenTelemetry semantic conventions 1.41, ``gen-ai``; opentelemetry-instrumentation-openai-v2
2.4b0.
"""

from __future__ import annotations

from otel_bridge import semconv
from otel_bridge.conventions.convention import GENERATION, TOOL, Convention

GEN_AI = Convention(
    title="OpenTelemetry GenAI",
    scopes=("opentelemetry.instrumentation.", "opentelemetry.util.genai"),
    switch="OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true (with OTEL_SEMCONV_STABILITY_OPT_IN="
    "gen_ai_latest_experimental: SPAN_ONLY)",
    names=frozenset({
        semconv.GEN_AI_OPERATION, semconv.GEN_AI_REQUEST_MODEL, semconv.GEN_AI_RESPONSE_MODEL,
        semconv.GEN_AI_FINISH_REASONS, semconv.GEN_AI_TOOL_NAME, semconv.GEN_AI_TOOL_CALL_ID, semconv.EVALUATION_NAME,
        "gen_ai.agent.call.id", "gen_ai.agent.id", "gen_ai.agent.name", "gen_ai.agent.version",
        "gen_ai.conversation.id", "gen_ai.data_source.id", "gen_ai.message.index",
        "gen_ai.openai.api_base", "gen_ai.openai.request.service_tier", "gen_ai.openai.response.service_tier",
        "gen_ai.openai.response.system_fingerprint", "gen_ai.output.type", "gen_ai.prompt.name", "gen_ai.provider.name",
        "gen_ai.request.encoding_formats", "gen_ai.response.id", "gen_ai.response.status", "gen_ai.system",
        "gen_ai.token.type", "gen_ai.tool.type", "gen_ai.workflow.name", "openai.api.type",
        "openai.request.service_tier", "openai.response.service_tier", "openai.response.system_fingerprint",
    }),
    span_words=frozenset({
        "chat", "completion", "create_agent", "embeddings", "execute_tool", "generate_content", "invoke_agent",
        "invoke_workflow", "retrieval", "text_completion",
    }),
    content=frozenset({
        semconv.GEN_AI_INPUT_MESSAGES, semconv.GEN_AI_OUTPUT_MESSAGES, semconv.GEN_AI_SYSTEM_INSTRUCTIONS,
        semconv.GEN_AI_TOOL_ARGUMENTS, semconv.GEN_AI_TOOL_RESULT, semconv.EVALUATION_EXPLANATION,
        "gen_ai.agent.description", "gen_ai.completion", "gen_ai.prompt", "gen_ai.retrieval.documents",
        "gen_ai.retrieval.query.text", "gen_ai.tool.definitions", "gen_ai.tool.description",
    }),
    content_prefixes=("gen_ai.event.content",),
    kinds={
        semconv.GEN_AI_OPERATION: {
            "chat": GENERATION, "text_completion": GENERATION, "generate_content": GENERATION,
            "completion": GENERATION, "execute_tool": TOOL,
        },
    },
    inputs=("gen_ai.prompt",),
    outputs=("gen_ai.completion",),
    arguments=(semconv.GEN_AI_TOOL_ARGUMENTS,),
    results=(semconv.GEN_AI_TOOL_RESULT,),
    models=(semconv.GEN_AI_RESPONSE_MODEL, semconv.GEN_AI_REQUEST_MODEL),
    input_tokens=(semconv.GEN_AI_INPUT_TOKENS, "gen_ai.usage.prompt_tokens"),
    output_tokens=(semconv.GEN_AI_OUTPUT_TOKENS, "gen_ai.usage.completion_tokens"),
    finish_reasons=(semconv.GEN_AI_FINISH_REASONS,),
)  # fmt: skip
