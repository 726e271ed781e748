"""The computation graph of ops, and the network: units (fusions of ops) in blocks (runs between cuts)."""
