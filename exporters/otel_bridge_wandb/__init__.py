"""Exporter wandb."""
