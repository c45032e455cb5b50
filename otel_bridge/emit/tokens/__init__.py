"""Tokens: values of each sampled token of a rollout, such as log-probabilities of engine and trainer."""
