"""The AgentOS home directory: a folder for each run, and what stands in it.

Doors: `paths`, `run_folder`, `run_status`.
"""
