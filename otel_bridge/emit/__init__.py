"""The trainer's side: emit rows, rollouts and configs as OTLP, appended to a segment."""
