"""Images, tables and texts that a program logs beside numbers: from Python objects to events."""
