"""The OTLP receiver."""
