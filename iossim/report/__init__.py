"""Words, tables, pictures, traces and files of results."""
