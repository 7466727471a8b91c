"""Documents to train on."""

from __future__ import annotations

import random


def make_documents(n: int, seed: int = 0) -> list[str]:
    """Return short encyclopedic documents with some grammar, many names, accents and line breaks."""
    rng = random.Random(seed)
    syllables, things = (
        ("Év", "reux", "ly", "on", "nî", "mes", "bre", "st", "do", "le"),
        ("bridge", "market", "river"),
    )

    def sentence() -> str:
        name = "".join(rng.choices(syllables, k=4)).capitalize()
        return f"{name} has a {rng.choice(things)} of {rng.randint(1200, 1999)}, near its old {rng.choice(things)}."

    return ["\n".join(sentence() for _ in range(rng.randint(1, 5))) for _ in range(n)]
