"""The command `otel-bridge serve`."""
