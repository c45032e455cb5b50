"""Stores the records of one run in SQLite, with what the bridge must remember between starts."""
