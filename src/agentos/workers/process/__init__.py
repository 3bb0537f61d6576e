"""Carry out attempts in worker processes. Door: `parent`."""
