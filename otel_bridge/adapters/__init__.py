"""Adapters: one module a framework, which enters that framework by its own plug point.

A module here imports its framework only when it is imported itself, or later; nothing else imports the module.
"""
