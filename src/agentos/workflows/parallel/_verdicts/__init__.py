"""How answers are read: one subject per module. `verdicts` has the doors.

`durations` and `clocks` read times, `headers` and `bodies` collect what an answer says, `texts` knows the phrases that
providers use, `rules` weighs all of it. `objects` finds status, headers and body in what SDKs raise and return,
`output` in what commands print. Nothing here imports an SDK, and nothing here reads a clock.
"""
