"""Connects training frameworks: one module per framework, through the framework's own plug point.

Nothing imports these modules by default. A module imports its framework only when it is imported
itself, or later.
"""
