"""Ways to run workflows; `parallel` is the one there is."""
