"""Programs with real GenAI instrumentations, each ``python genai_programs.py NAME``; none knows otel-bridge.

The environment names the model's address (``OPENAI_BASE_URL``) and that of OTLP (``OTEL_EXPORTER_OTLP_ENDPOINT``). The
environment in which they run: tests/genai/requirements.txt.
"""
# pyright: basic, reportMissingImports=false, reportPrivateImportUsage=false, reportFunctionMemberAccess=false
# mypy: ignore-errors

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from openai_server import DESCRIPTION, QUESTION, SYSTEM, WEATHER

MODEL = "policy"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": DESCRIPTION,
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": DESCRIPTION}},
        },
    },
}


def sdk() -> Callable[[], None]:
    """Set up the stock SDK with OTLP over HTTP for spans and log records; return what flushes it."""
    from opentelemetry import _logs, trace
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    tracers, loggers = TracerProvider(), LoggerProvider()
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    loggers.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
    trace.set_tracer_provider(tracers)
    _logs.set_logger_provider(loggers)

    def flush() -> None:
        tracers.shutdown()
        loggers.shutdown()

    return flush


def ask_openai() -> None:
    """Ask with OpenAI's client: a tool is called and answered; then a request fails."""
    import openai

    client = openai.OpenAI(api_key="test", max_retries=0)
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": QUESTION},
    ]
    first = client.chat.completions.create(
        model=MODEL, messages=messages, tools=[TOOL], temperature=0.5
    )
    answer = first.choices[0].message
    messages.append(answer.model_dump(exclude_none=True))
    for call in answer.tool_calls or ():
        messages.append({"role": "tool", "tool_call_id": call.id, "content": WEATHER})
    client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
    with contextlib.suppress(openai.BadRequestError):
        client.chat.completions.create(
            model="broken", messages=[{"role": "user", "content": QUESTION}]
        )


def ask_langchain() -> None:
    """Ask with LangChain: a chain of a prompt and a chat model that calls a tool."""
    from langchain_core.messages import ToolMessage
    from langchain_core.prompts import ChatPromptTemplate
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool(description=DESCRIPTION)
    def weather(place: str) -> str:
        return WEATHER

    model = ChatOpenAI(model=MODEL, api_key="test", max_retries=0).bind_tools([weather])
    prompt = ChatPromptTemplate.from_messages(
        [("system", "{system}"), ("user", "{question}"), ("placeholder", "{more}")]
    )

    def agent(given: dict[str, Any]) -> Any:
        first = (prompt | model).invoke(given)
        results = [
            ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
            for call in first.tool_calls
        ]
        return (prompt | model).invoke({**given, "more": [first, *results]})

    from langchain_core.runnables import RunnableLambda

    RunnableLambda(agent).invoke({"system": SYSTEM, "question": QUESTION, "more": []})


def openai_v2() -> None:
    """opentelemetry-instrumentation-openai-v2: GenAI conventions."""
    from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor

    flush = sdk()
    OpenAIInstrumentor().instrument()
    ask_openai()
    flush()


def traceloop_openai() -> None:
    """opentelemetry-instrumentation-openai: OpenLLMetry."""
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor

    flush = sdk()
    OpenAIInstrumentor().instrument()
    ask_openai()
    flush()


def traceloop_openai_events() -> None:
    """The same with ``use_legacy_attributes=False``: content in log events."""
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor

    flush = sdk()
    OpenAIInstrumentor(use_legacy_attributes=False).instrument()
    ask_openai()
    flush()


def traceloop_langchain() -> None:
    """opentelemetry-instrumentation-langchain: OpenLLMetry."""
    from opentelemetry.instrumentation.langchain import LangchainInstrumentor

    flush = sdk()
    LangchainInstrumentor().instrument()
    ask_langchain()
    flush()


def openinference_openai() -> None:
    """openinference-instrumentation-openai."""
    from openinference.instrumentation.openai import OpenAIInstrumentor

    flush = sdk()
    OpenAIInstrumentor().instrument()
    ask_openai()
    flush()


def openinference_langchain() -> None:
    """openinference-instrumentation-langchain."""
    from openinference.instrumentation.langchain import LangChainInstrumentor

    flush = sdk()
    LangChainInstrumentor().instrument()
    ask_langchain()
    flush()


def pydantic_ai() -> None:
    """pydantic-ai's own instrumentation; GENAI_VERSION: of its data format."""
    from pydantic_ai import Agent
    from pydantic_ai.models.instrumented import InstrumentationSettings
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    flush = sdk()
    version: Any = int(os.environ.get("GENAI_VERSION", "2"))
    settings = InstrumentationSettings(
        version=version, **json.loads(os.environ.get("GENAI_ARGUMENTS", "{}"))
    )
    provider = OpenAIProvider(base_url=os.environ["OPENAI_BASE_URL"], api_key="test")
    agent = Agent(
        OpenAIChatModel(MODEL, provider=provider), system_prompt=SYSTEM, name="agent"
    )
    Agent.instrument_all(settings)

    @agent.tool_plain(description=DESCRIPTION)
    def weather(place: str) -> str:
        return WEATHER

    agent.run_sync(QUESTION)
    flush()


def mlflow_openai() -> None:
    """mlflow.openai.autolog(): MLflow's own spans, below a function that is traced too."""
    import mlflow

    mlflow.openai.autolog()

    @mlflow.trace
    def agent(question: str) -> str:
        ask_openai()
        return WEATHER

    agent(QUESTION)
    mlflow.flush_trace_async_logging()
    traces = (
        mlflow.search_traces(return_type="list")
        if os.environ.get("MLFLOW_TRACKING_URI")
        else []
    )
    print(
        f"mlflow holds {len(traces)} traces with {sum(len(trace.data.spans) for trace in traces)} spans"
    )


def mlflow_langchain() -> None:
    """mlflow.langchain.autolog()."""
    import mlflow

    mlflow.langchain.autolog()
    ask_langchain()
    mlflow.flush_trace_async_logging()


PROGRAMS = (
    openai_v2,
    traceloop_openai,
    traceloop_openai_events,
    traceloop_langchain,
    openinference_openai,
    openinference_langchain,
    pydantic_ai,
    mlflow_openai,
    mlflow_langchain,
)

if __name__ == "__main__":
    {program.__name__: program for program in PROGRAMS}[sys.argv[1]]()
