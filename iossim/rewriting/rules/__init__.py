"""The sets of rules that ship, a YAML file each (:mod:`iossim.rewriting.rule_file`)."""
