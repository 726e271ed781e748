"""What everything stands on: errors, the registry, values, users' files, compiled code, tables."""
