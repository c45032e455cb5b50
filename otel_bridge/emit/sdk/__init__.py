"""Connection of the stock OpenTelemetry SDK in a training process to the run."""
