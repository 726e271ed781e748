"""The cost model: its contract and capabilities; measured costs and their store, the table, replay, random models."""
