"""Pools that several processes share: one owner decides, the members ask it.

Begin with `_owner/owner` (decisions), `_member/member_session` (what a member knows and sends) and
`_owner/owner_process` (the loop that joins an owner with its journal and its links). `_machine` and `_server` are the
two transports.

Doors: `shared_store` (the pool as a `Store`), `copied_store` (a private copy of its state, for plans), `transport` (the
interfaces of a transport, and its errors), `gates` (where a member finds the owner), `messages` (the protocol),
`message_values` (limits, verdicts and events in messages), `repair` (a damaged file).
"""
