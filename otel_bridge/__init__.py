"""OpenTelemetry in, one run in Weights & Biases, MLflow and Trackio out."""
