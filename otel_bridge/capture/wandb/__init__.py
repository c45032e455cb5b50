"""Capture of wandb: its module and its runs replaced, by its rules for rows, steps, config and summary."""
