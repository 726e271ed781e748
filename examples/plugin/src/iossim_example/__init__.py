"""What a package of someone else adds to iossim."""
