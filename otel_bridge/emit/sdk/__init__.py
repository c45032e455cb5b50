"""The stock OpenTelemetry SDK in a training process, connected to the run."""
