"""From the options of a command to a run under way."""
