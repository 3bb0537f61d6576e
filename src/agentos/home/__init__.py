"""The AgentOS home directory: a folder for each run, and the status of a run read from it.

Doors: `paths`, `run_folder`, `run_status`.
"""
