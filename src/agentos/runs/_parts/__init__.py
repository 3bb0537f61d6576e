"""The parts of one run: messages, admission, context of attempts, outcomes, progress, recorder, results, timers.

`run_parts` makes them. They decide nothing about the order of work: that is in `_driver` and `_rules`.
"""
