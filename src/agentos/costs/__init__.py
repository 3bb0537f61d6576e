"""What requests cost, and amounts of money and tokens that a run or an item may spend.

Doors: `amounts` (texts for people), `prices` (money per model), `budget` (pure: what may be spent, and whether
something more may start).
"""
