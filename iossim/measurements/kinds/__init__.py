"""The kinds of operators that tables name, a family a file, found by looking."""
