"""The model zoo, a module each network; a module states its ``MODELS`` (:class:`iossim.models.catalogue.ZooModel`)."""
