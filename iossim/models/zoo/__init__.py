"""The model zoo, one module per network, which defines its ``MODELS`` (:class:`iossim.models.catalogue.ZooModel`)."""
