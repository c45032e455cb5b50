"""Tokens: values of each sampled token of rollouts -> rows, and the figures and the token view of each rollout."""
