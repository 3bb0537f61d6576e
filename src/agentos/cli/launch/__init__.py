"""From the options of a command to a run: `prepare` checks everything, `execute` runs it, `reporter` shows it.

`item_input` reads items, `pool_setup` makes the pool and chooses its store, `engine` connects to a cluster.
"""
