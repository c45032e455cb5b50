"""The command line, ``otel-bridge``: a module for each command (docs/commands.md)."""

from otel_bridge.cli.main import main

__all__ = ["main"]
