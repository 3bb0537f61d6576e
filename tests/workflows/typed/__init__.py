"""Programs that type checkers read: `accepted` has no error, and each line of `refused` that says so has one."""
