"""What ``init()`` says of an endpoint that cannot be right: HTTP, for want of grpcio, to the port of gRPC.

The bridge chooses the protocol (`otel_bridge.bridge.forwarding.endpoint`), and says in its log what this says on the
terminal.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from otel_bridge.exporter import SIGNALS

_GRPC_PORT: Final = 4317
_PREFIX: Final = "OTEL_EXPORTER_OTLP_"


def forwarding_note(env: Mapping[str, str]) -> str:
    """Return what to do where `otlp` would speak HTTP to port 4317 for want of grpcio; empty when all is well."""
    places = {signal.upper(): env.get(f"{_PREFIX}{signal.upper()}_ENDPOINT") for signal in SIGNALS}
    wrong = any(
        _is_grpcs(place or env.get(f"{_PREFIX}ENDPOINT", ""))
        and not (env.get(f"{_PREFIX}{signal}_PROTOCOL") or env.get(f"{_PREFIX}PROTOCOL"))
        for signal, place in places.items()
    )
    if not wrong or importlib.util.find_spec("grpc") is not None:
        return ""
    return (
        f"otlp goes by HTTP, since grpcio is not installed, but port {_GRPC_PORT} is gRPC's: "
        "pip install 'otel-bridge[collector]', or name the port of HTTP, 4318"
    )


def _is_grpcs(endpoint: str) -> bool:
    try:
        return urlsplit(endpoint).port == _GRPC_PORT
    except ValueError:
        return False
