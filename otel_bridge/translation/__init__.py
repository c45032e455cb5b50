"""Translation of OTLP to records, without I/O: (state, frame or tick, now) -> (changes of state, records)."""
