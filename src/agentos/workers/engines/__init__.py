"""Carry out attempts on an executor of the caller, such as a Dask cluster. Doors: `executor`, `connect`."""
