"""The kinds of devices, one file each with a ``KIND``; the name of the file is that of the kind."""
