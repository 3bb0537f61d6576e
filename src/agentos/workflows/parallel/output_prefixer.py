"""The import path of `OutputPrefixer` that programs use; the code is in `agentos.output.prefix`."""

from agentos.output.prefix import OutputPrefixer, prefix_lines

__all__ = ["OutputPrefixer", "prefix_lines"]
