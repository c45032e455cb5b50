"""Reads messages in the shape of any library, for programs and for what arrives over the wire."""
