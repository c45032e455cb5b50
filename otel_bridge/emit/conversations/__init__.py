"""Conversations of programs -> GenAI messages, for every call and adapter that takes messages."""
