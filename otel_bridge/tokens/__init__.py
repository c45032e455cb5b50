"""Statistics of tokens, which emission and translation share."""
