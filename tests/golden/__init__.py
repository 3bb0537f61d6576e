"""Golden tests: the output of `agentos` commands and of Python programs, compared byte for byte with recorded files."""
