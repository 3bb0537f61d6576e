"""Run a command for each item. Doors: `command` (the declaration), `runner`, `reports`."""
