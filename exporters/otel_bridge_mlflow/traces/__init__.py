"""Rollouts as MLflow traces with assessments."""
