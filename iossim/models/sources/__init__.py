"""Sources of models, one file each: ``load(model, options)`` makes the network, whose ``source`` has the model only.

It raises OptionError for options that do not apply to the source.
"""
