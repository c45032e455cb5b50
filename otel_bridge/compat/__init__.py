"""Modules with the calls of other trackers, for programs without those trackers."""
