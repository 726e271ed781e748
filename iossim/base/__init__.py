"""Foundations of all other packages: errors, the registry, values, users' files, compiled code, tables."""
