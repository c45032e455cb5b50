"""The stock OpenTelemetry SDK alone: otel-bridge run --exporters trackio -- python examples/stock_otel.py"""

import json

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

meters = MeterProvider(
    [PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=200)]
)
tracers = TracerProvider()
tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
metrics.set_meter_provider(meters)
trace.set_tracer_provider(tracers)

loss = metrics.get_meter("training").create_gauge("loss")
tracer = trace.get_tracer("training")
for step in range(1, 11):
    loss.set(1.0 / step, {"step": step})
    meters.force_flush()
    with tracer.start_as_current_span("chat policy") as span:
        span.set_attributes(
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": "policy",
                "gen_ai.input.messages": json.dumps(
                    [{"role": "user", "parts": [{"type": "text", "content": "2 + 2?"}]}]
                ),
                "gen_ai.output.messages": json.dumps(
                    [{"role": "assistant", "parts": [{"type": "text", "content": "4"}]}]
                ),
                "rl.reward": 1.0,
                "rl.step": step,
            }
        )
tracers.shutdown()
meters.shutdown()
