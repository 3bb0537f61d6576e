"""Pure rules of the pool: which request gets which credential, and when.

Begin with `allocator` (request, grant). It is made of `membership` (credentials, groups, providers), `ready_heaps`
(credentials that could be granted), `wait_queue` (requests that wait), `wake_ups` (instants at which time changes
something), `lease_end` (every end of a lease) and `feedback` (answers of
providers). `records`, `cooldown_scope` and `lease_states` are their data, `wait_reasons` explains a wait.
"""
