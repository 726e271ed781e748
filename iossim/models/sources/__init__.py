"""Where models come from, a file each, as :class:`iossim.models.load.Source`."""
