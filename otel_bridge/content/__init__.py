"""Which text may leave: one policy, applied to the values of a program, to OTLP and to media."""
