"""Fake of ``transformers.integrations.integration_utils``."""

INTEGRATION_TO_CALLBACK: dict = {}
