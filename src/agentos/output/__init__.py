"""The output of items: redacted, logged, split into whole lines and prefixed.

Doors: `stream` (`Output`, `Log`), `prefix` (`OutputPrefixer`), `capture` (`OutputCapture`, for Python workers),
`descriptors` (`DescriptorCapture`, for what they print past Python's streams).
"""
