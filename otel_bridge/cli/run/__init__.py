"""The command `otel-bridge run`."""
