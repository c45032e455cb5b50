"""Spans -> rollouts, their sampling, statistics and evaluations. Pure."""
