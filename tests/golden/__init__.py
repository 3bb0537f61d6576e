"""Records what users see: the output of `agentos` commands and of Python programs, compared byte for byte."""
