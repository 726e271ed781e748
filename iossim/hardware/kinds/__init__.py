"""The kinds of devices, one file of tables each; the name of the file is that of the kind."""
