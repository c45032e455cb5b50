"""OTLP messages -> what they say, one signal a module. Pure."""
