"""The sets of rules that ship, a YAML file each (:mod:`iossim.transforms.rewriting.rule_file`)."""
