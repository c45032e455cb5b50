"""Content policy: the text that may leave this process."""
