"""The kinds of operators in tables, one file per family, found by listing the package."""
