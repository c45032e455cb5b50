"""MLflow's own spans, as ``mlflow.<library>.autolog()`` and ``@mlflow.trace`` make them.

Each value is JSON text.

Source: mlflow 3.17.2, ``mlflow/tracing/constant.py`` and ``mlflow/entities/span.py``.
"""

from __future__ import annotations

from otel_bridge.conventions.convention import GENERATION, SPAN, TOOL, Convention

MLFLOW = Convention(
    title="MLflow",
    scopes=("mlflow.",),
    names=frozenset({
        "mlflow.chat.tokenUsage", "mlflow.experimentId", "mlflow.llm.cost", "mlflow.llm.model", "mlflow.llm.provider",
        "mlflow.spanFunctionName", "mlflow.spanLogLevel", "mlflow.spanType",
        "mlflow.traceRequestId",
    }),
    content=frozenset({"mlflow.chat.messages", "mlflow.chat.tools", "mlflow.spanInputs", "mlflow.spanOutputs"}),
    kinds={
        "mlflow.spanType": {
            "agent": SPAN, "chain": SPAN, "chat_model": GENERATION, "llm": GENERATION, "tool": TOOL,
        },
    },
    rollouts=frozenset({"agent", "chat_model", "llm"}),
    inputs=("mlflow.spanInputs",),
    outputs=("mlflow.spanOutputs",),
    arguments=("mlflow.spanInputs",),
    results=("mlflow.spanOutputs",),
    models=("mlflow.llm.model",),
    input_tokens=("mlflow.chat.tokenUsage#input_tokens",),
    output_tokens=("mlflow.chat.tokenUsage#output_tokens",),
)  # fmt: skip
