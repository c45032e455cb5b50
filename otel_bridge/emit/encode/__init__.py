"""Python values -> OTLP bytes, on the caller's thread. Pure."""
