"""How each family of ops is lowered, a file each. Importing this package registers them all."""

from iossim.base.registry import modules

modules(__name__)
