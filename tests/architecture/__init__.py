"""Rules for the source tree, checked on the syntax trees of all modules.

- `test_floors`: packages import lower floors only.
- `test_doors`: private modules are imported inside their package only; doors have docstrings; `__init__.py` holds one.
- `test_pure_code`: rules and calculations have no side effects.
- `test_uncollected_imports`: tests that `make test` does not collect (`soak`, `clients`) can be imported.

Each rule stands with its reason in a constant `…_RULE`, which a failing test prints. Known violations are listed in
`exceptions`; the lists can only shrink.
"""
