"""Documents to train on."""

from __future__ import annotations

import random


def make_documents(n: int, seed: int = 0) -> list[str]:
    """Return short documents with names, accents and line breaks, in a simple grammar."""
    rng = random.Random(seed)
    syllables, things = (
        ("Év", "reux", "ly", "on", "nî", "mes", "bre", "st", "do", "le"),
        ("bridge", "market", "river"),
    )

    def sentence() -> str:
        name = "".join(rng.choices(syllables, k=4)).capitalize()
        thing, year = rng.choice(things), rng.randint(1200, 1999)
        return f"{name} has a {thing} of {year}, near its old {rng.choice(things)}."

    return ["\n".join(sentence() for _ in range(rng.randint(1, 5))) for _ in range(n)]
