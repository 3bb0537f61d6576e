"""Checks of the source tree itself: which module may import which. Nothing of the package is executed."""
