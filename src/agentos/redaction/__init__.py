"""Takes secrets out of texts, bytes, streams and JSON.

Doors: `redactor` (`Redactor`, `RedactionStream`).
"""
