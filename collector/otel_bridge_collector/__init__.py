"""The OTLP receiver: appends data that arrives over gRPC or HTTP to run folders, then acknowledges it."""

from otel_bridge_collector.receiver import Receiver, ReceiverSettings

__all__ = ["Receiver", "ReceiverSettings"]
