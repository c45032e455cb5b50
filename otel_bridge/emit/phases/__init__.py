"""Phases of a step: what a process did, and for how long."""
