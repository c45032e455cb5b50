"""Reads conversations of every framework, for every call and adapter that takes messages."""
