// A job that knows the OpenTelemetry SDK for JavaScript and nothing else: `node job.mjs PROTOCOL ENDPOINT SERVICE [TOKEN]`.
// Metrics with a step as an attribute, a counter, rollouts as traces with the GenAI conventions, and of a training step
// its phases, the rollouts that it consumed, and the log-probabilities of their tokens.
import { trace, context, SpanKind } from "@opentelemetry/api";
import { Metadata } from "@grpc/grpc-js";
import { resourceFromAttributes } from "@opentelemetry/resources";
import { AggregationTemporality, MeterProvider, PeriodicExportingMetricReader } from "@opentelemetry/sdk-metrics";
import { BasicTracerProvider, BatchSpanProcessor } from "@opentelemetry/sdk-trace-base";

const [protocol, endpoint, service, token] = process.argv.slice(2);
const packages = { grpc: "grpc", "http/json": "http", "http/protobuf": "proto" };
const { OTLPMetricExporter } = await import(`@opentelemetry/exporter-metrics-otlp-${packages[protocol]}`);
const { OTLPTraceExporter } = await import(`@opentelemetry/exporter-trace-otlp-${packages[protocol]}`);

function where(signal) {
  const header = token ? { authorization: `Bearer ${token}` } : {};
  if (protocol !== "grpc") return { url: `${endpoint}/v1/${signal}`, headers: header };
  const metadata = new Metadata();
  for (const [key, value] of Object.entries(header)) metadata.set(key, value);
  return { url: endpoint, metadata };
}

const resource = resourceFromAttributes({ "service.namespace": "clients", "service.name": service });
const reader = new PeriodicExportingMetricReader({
  exporter: new OTLPMetricExporter({ ...where("metrics"), temporalityPreference: AggregationTemporality.DELTA }),
  exportIntervalMillis: 3_600_000, // by forceFlush only
});
const meters = new MeterProvider({ resource, readers: [reader] });
const spans = new BasicTracerProvider({ resource, spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter(where("traces")))] });
const meter = meters.getMeter("job");
const tracer = spans.getTracer("job");

const loss = meter.createGauge("loss");
const tokens = meter.createCounter("tokens");
for (let step = 0; step < 20; step++) {
  loss.record(step / 2, { step });
  tokens.add(10, { step });
  if (step % 10 === 9) await meters.forceFlush();
}

const links = [];
for (let sample = 0; sample < 3; sample++) {
  const attributes = { "rl.step": 7, "rl.reward": sample / 4 };
  const root = tracer.startSpan("rollout", { attributes, root: true });
  const chat = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "policy",
    "gen_ai.input.messages": JSON.stringify([{ role: "user", parts: [{ type: "text", content: "2 + 2?" }] }]),
    "gen_ai.output.messages": JSON.stringify([
      { role: "assistant", parts: [{ type: "text", content: "4 – vier" }], finish_reason: "stop" },
    ]),
  };
  tracer
    .startSpan("chat policy", { kind: SpanKind.CLIENT, attributes: chat }, trace.setSpan(context.active(), root))
    .end();
  root.end();
  links.push({ context: root.spanContext() });
}

function record(name, attributes, options = {}) {
  tracer.startSpan(name, { root: true, attributes: { "rl.step": 8, ...attributes }, ...options }).end();
}

const now = Date.now();
for (const [name, step, seconds] of [["generate", 8, 3], ["train", 8, 1]]) {
  const attributes = { "rl.step": step, "rl.phase.name": name };
  tracer.startSpan("rl.phase", { root: true, attributes, startTime: now - seconds * 1000 }).end(now);
}
record("rl.train", {}, { links });
record("rl.tokens", {
  "rl.tokens.lengths": [2, 1, 1],
  "rl.tokens.stream.logprobs": [-1.0, -0.5, -2.0, -0.25],
  "rl.tokens.stream.trainer_logprobs": [-1.5, -0.5, -1.0, -0.25],
}, { links });
await spans.forceFlush();
await meters.shutdown();
await spans.shutdown();
console.log(JSON.stringify({ sent: true }));
