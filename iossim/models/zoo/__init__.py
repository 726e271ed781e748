"""The model zoo, a module a network, which states its ``MODELS`` (:class:`iossim.models.catalogue.ZooModel`)."""
