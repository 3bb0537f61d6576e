"""The transport of one machine: an SQLite journal, and an owner behind a unix socket."""
