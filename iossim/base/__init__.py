"""What everything stands on: errors, the registry, values, files of the user, compiled code, tables of the terminal."""
