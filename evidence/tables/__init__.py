"""Tables and figures of the evidence, for the terminal and as pictures."""
