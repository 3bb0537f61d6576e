"""What a run does with each message: `mailbox` delivers messages one at a time, `driver` handles them.

The other modules are helpers of the driver: start and end of attempts, intake of items, time-outs, the maximum wait,
periodic work, shutdown, and the reason for waiting.
"""
