"""Every op kind, a file a family. A module registers its kinds as it is imported; :data:`iossim.ir.op.OPS` imports all,
once a kind is asked for that none has registered yet. There is no list to extend.
"""
