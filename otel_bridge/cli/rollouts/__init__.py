"""The command `otel-bridge rollouts`."""
