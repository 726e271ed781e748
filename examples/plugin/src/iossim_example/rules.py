"""Rules."""

RULES = """
rule: double-relu
origin: made up for an example
source:
  - y = relu(x)
  - z = relu(y)
target:
  - r = relu(x)
outputs: {z: r}
"""


def rules() -> str:
    return RULES
