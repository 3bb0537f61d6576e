"""What items print: their lines, their logs, the prefix of each line.

Doors: `stream`, `prefix`, `capture`.
"""
