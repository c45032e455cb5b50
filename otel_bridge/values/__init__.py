"""Values of a user of any type -> keys, texts, numbers and plain data: one table of types for every call."""
