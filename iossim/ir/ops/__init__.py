"""Every op kind, one file per family. Importing this package registers them all; there is no list to extend."""

from iossim.base.registry import modules

modules(__name__)
