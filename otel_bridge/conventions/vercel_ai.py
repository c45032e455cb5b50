"""The AI SDK of Vercel.

Source: its documentation, "Telemetry"; spans of ai 5.0.277. Versions 4 and 5 use the same attributes.
"""

from __future__ import annotations

from otel_bridge.conventions.convention import GENERATION, SPAN, TOOL, Convention

_WHOLE = ("ai.generatetext", "ai.streamtext", "ai.generateobject", "ai.streamobject")
"""Operations of the program, in lower case; each holds calls of the model."""
_CALLS = (
    "ai.generatetext.dogenerate", "ai.streamtext.dostream", "ai.generateobject.dogenerate",
    "ai.streamobject.dostream",
)  # fmt: skip

VERCEL_AI = Convention(
    title="Vercel AI SDK",
    scopes=("ai",),
    switch="experimental_telemetry: {recordInputs: true, recordOutputs: true}",
    names=frozenset({
        "ai.model.id", "ai.model.provider", "ai.operationId", "ai.response.finishReason", "ai.response.id",
        "ai.response.model", "ai.toolCall.id", "ai.toolCall.name",
    }),
    content_prefixes=(
        "ai.prompt", "ai.response.files", "ai.response.object", "ai.response.reasoning", "ai.response.text",
        "ai.response.toolCalls", "ai.result.", "ai.toolCall.args", "ai.toolCall.result", "ai.value",
    ),
    kinds={
        "ai.operationId": {
            **dict.fromkeys(_WHOLE, SPAN), **dict.fromkeys(_CALLS, GENERATION), "ai.toolcall": TOOL,
        },
    },
    rollouts=frozenset({*_WHOLE, *_CALLS}),
    inputs=("ai.prompt.messages", "ai.prompt"),
    outputs=("ai.response.text", "ai.response.object"),
    calls=("ai.response.toolCalls",),
    reasoning=("ai.response.reasoning",),
    files=("ai.response.files",),
    arguments=("ai.toolCall.args",),
    results=("ai.toolCall.result",),
    models=("ai.response.model", "ai.model.id"),
    input_tokens=("ai.usage.promptTokens", "ai.usage.inputTokens"),
    output_tokens=("ai.usage.completionTokens", "ai.usage.outputTokens"),
    finish_reasons=("ai.response.finishReason",),
)  # fmt: skip
