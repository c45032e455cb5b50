"""Exporter mlflow."""
