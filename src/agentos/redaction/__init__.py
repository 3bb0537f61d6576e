"""Replaces secrets in texts, bytes, streams and JSON by a mask.

Doors: `redactor` (`Redactor`, `RedactionStream`), `recent_tokens` (client tokens, which change with every attempt),
`json_text` (JSON, string by string), `mask` (the mask, the shortest secret that is redacted, objects that must not be
copied).
"""
