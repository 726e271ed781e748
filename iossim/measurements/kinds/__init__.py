"""The kinds of operators in tables: what a kind is, and all kinds, family by family."""
