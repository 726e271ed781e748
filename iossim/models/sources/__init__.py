"""Sources of models, one file each, as :class:`iossim.models.load.Source`."""
