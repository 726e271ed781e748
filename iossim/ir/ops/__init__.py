"""Every op kind, one file per family. Importing a module registers its kinds; :data:`iossim.ir.op.OPS` imports all of
them when an unregistered kind is requested. There is no list to extend.
"""
