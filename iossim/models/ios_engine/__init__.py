"""Files of the published IOS engine: a network together with its schedule, read and written."""
