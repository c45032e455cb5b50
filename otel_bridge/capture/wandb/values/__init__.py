"""Values of captured W&B programs: what becomes of those of a row, and what the summary shows of them."""
