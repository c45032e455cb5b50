"""What text may leave this process."""
