"""The command line: ``otel-bridge demo | run | drain | status | doctor``."""

from otel_bridge.cli.main import main

__all__ = ["main"]
