"""Recording of one process: rows, events and other records, numbered and appended to its segments."""
