"""Records of one run in SQLite, and what the bridge must remember between starts."""
