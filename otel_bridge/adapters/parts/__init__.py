"""What adapters share, and what one of them keeps apart from the module that its users name."""
