"""Values of all producers -> rows and configs. Pure."""
