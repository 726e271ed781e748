"""Studies that ship, a YAML file each: ``iossim study list`` names them."""
