"""Rules for the source tree, checked on the syntax trees of all modules; no module is executed for it.

- `test_floors`: packages import lower floors only.
- `test_doors`: private modules are imported inside their package only; doors have docstrings; `__init__.py` holds one.
- `test_pure_code`: rules and calculations have no side effects.

Each rule stands with its reason in a constant `…_RULE`, which a failing test prints. Known violations are listed in
`exceptions`; the lists can only shrink.
"""
