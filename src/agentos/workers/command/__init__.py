"""Workers that run a command for each item. Doors: `command`, `runner`, `reports`."""
