"""The OTLP receiver: what arrives over gRPC or HTTP is appended to run folders, then acknowledged."""

from otel_bridge_collector.receiver import Receiver, ReceiverSettings

__all__ = ["Receiver", "ReceiverSettings"]
