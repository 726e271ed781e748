"""The tests of a project that uses iossim: its fixtures are asked for here."""

pytest_plugins = ["iossim.testing"]
