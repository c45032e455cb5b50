"""The command `otel-bridge status`."""
