"""The command `otel-bridge doctor`."""
