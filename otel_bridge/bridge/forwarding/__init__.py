"""The exporter ``otlp``: the bytes of the segments go on, as they are, to the next bridge or Collector."""
