"""Programs that know nothing of otel-bridge: stock OpenTelemetry, configured by its environment or by itself."""

from __future__ import annotations

OTLP_BY_ITSELF = """
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    meter = meters.get_meter("reward")
    meter.create_gauge("queue").set(3.0, {"rl.step": 7})
    meter.create_counter("requests").add(5)
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    with tracers.get_tracer("agent").start_as_current_span("rollout", attributes={"rl.step": 7, "rl.reward": 0.5}):
        pass
    meters.shutdown()
    tracers.shutdown()
"""
"""Meters and a rollout by the OTLP exporters that the stock SDK brings."""

GLOBAL_API = """
    from opentelemetry import metrics, trace

    meter = metrics.get_meter("reward")
    meter.create_gauge("queue").set(3.0, {"rl.step": 7})
    meter.create_counter("requests").add(5)
    with trace.get_tracer("agent").start_as_current_span("rollout", attributes={"rl.step": 7, "rl.reward": 0.5}):
        pass
"""
"""The same through the API alone, for ``opentelemetry-instrument``."""
