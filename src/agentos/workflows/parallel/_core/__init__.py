"""The rules: no I/O, no clock, no lock, no logging, no random. Time comes in as `now`, decisions go out."""
