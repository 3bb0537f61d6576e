"""Where the pool's state lives. `memory` is for one process."""
