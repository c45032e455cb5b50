"""Metrics of inference engines -> rows of the trainer's steps."""
