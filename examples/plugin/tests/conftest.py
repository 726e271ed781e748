pytest_plugins = ["iossim.testing"]
