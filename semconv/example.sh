ENDPOINT=http://127.0.0.1:4318
NOW=$(date +%s)000000000
hex() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }
TRACE=$(hex 16)

# The resource: the same in every request of the process.
RESOURCE='{"attributes": [
  {"key": "rl.project", "value": {"stringValue": "gsm8k"}},
  {"key": "rl.run.name", "value": {"stringValue": "from-curl"}},
  {"key": "rl.role", "value": {"stringValue": "trainer"}},
  {"key": "rl.instance.id", "value": {"stringValue": "'$(hex 8)'"}}]}'
STEP='{"key": "rl.step", "value": {"intValue": 7}}'

send() { curl --fail-with-body -sS -H 'Content-Type: application/json' --data-binary @- "$ENDPOINT/v1/$1"; }

# A row of two values. rl.row is how many values it has, rl.seq the number of the row.
send metrics <<END
{"resourceMetrics": [{"resource": $RESOURCE, "scopeMetrics": [{"scope": {"name": "otel_bridge"}, "metrics": [
  {"name": "loss", "gauge": {"dataPoints": [{"timeUnixNano": $NOW, "asDouble": 0.5, "attributes": [$STEP]}]}},
  {"name": "lr", "gauge": {"dataPoints": [{"timeUnixNano": $NOW, "asDouble": 1e-6, "attributes": [$STEP]}]}},
  {"name": "rl.row", "gauge": {"dataPoints": [{"timeUnixNano": $NOW, "asInt": 2, "attributes": [$STEP,
    {"key": "rl.seq", "value": {"intValue": 1}}]}]}}]}]}]}
END

# A rollout: a trace whose root is named "rollout".
send traces <<END
{"resourceSpans": [{"resource": $RESOURCE, "scopeSpans": [{"scope": {"name": "my-trainer"}, "spans": [
  {"traceId": "$TRACE", "spanId": "$(hex 8)", "name": "rollout", "kind": 1,
   "startTimeUnixNano": $NOW, "endTimeUnixNano": $NOW, "attributes": [$STEP,
    {"key": "rl.reward", "value": {"doubleValue": 1.0}},
    {"key": "rl.group.id", "value": {"stringValue": "p17"}},
    {"key": "rl.rollout.spans", "value": {"intValue": 1}},
    {"key": "gen_ai.input.messages", "value": {"stringValue":
      "[{\"role\": \"user\", \"parts\": [{\"type\": \"text\", \"content\": \"2 + 2?\"}]}]"}},
    {"key": "gen_ai.output.messages", "value": {"stringValue":
      "[{\"role\": \"assistant\", \"parts\": [{\"type\": \"text\", \"content\": \"4\"}]}]"}}]}]}]}]}
END

# The config of the role, an evaluation of the rollout, and the end of the process.
send logs <<END
{"resourceLogs": [{"resource": $RESOURCE, "scopeLogs": [{"scope": {"name": "otel_bridge"}, "logRecords": [
  {"timeUnixNano": $NOW, "eventName": "rl.run.config",
   "body": {"kvlistValue": {"values": [{"key": "batch_size", "value": {"intValue": 64}}]}},
   "attributes": [{"key": "rl.event.seq", "value": {"intValue": 1}}]},
  {"timeUnixNano": $NOW, "eventName": "gen_ai.evaluation.result", "traceId": "$TRACE", "attributes": [
    {"key": "rl.event.seq", "value": {"intValue": 2}},
    {"key": "gen_ai.evaluation.name", "value": {"stringValue": "judge"}},
    {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 0.7}}]},
  {"timeUnixNano": $NOW, "eventName": "rl.run.end", "attributes": [
    {"key": "rl.event.seq", "value": {"intValue": 3}},
    {"key": "rl.run.status", "value": {"stringValue": "finished"}},
    {"key": "rl.seq", "value": {"intValue": 1}}]}]}]}]}
END
