"""Forecasts: how long a run would take, and which limit binds it. Door: `plan`."""
