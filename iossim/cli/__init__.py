"""The command line: a function for each command, found in the room that it belongs to; options and outputs."""
