"""Real texts for a demo without a crawl: Wikipedia summaries in three parts that never meet, and labelled sentences.

Promises: what language models and classifiers are trained on is never a page of the sample crawl, because one function,
`partition_of`, says for every title which part it is in; all that is made here is a pure function of its arguments.
Leaves to others: fetching (asset_cache.py), training (model_training.py), making a crawl of them (sample_crawl.py).

    title, text = next(summaries("en", "pages"))
    sentences("fr")[0]
    crawl_like("es", 1_000, seed=0)         # what a page of a crawl reads like that nobody would cite
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from pipeline.models.cache import obtain
from pipeline.models.download import AssetError
from pipeline.models.published import PUBLISHED

Part = Literal["lm", "reference", "pages"]

LANGUAGES = ("en", "fr", "es")
"""Those that there are summaries in."""

VERSION = 1
"""Rises whenever equal arguments would give other texts."""

PART_BELOW: Mapping[Part, float] = MappingProxyType({"lm": 0.60, "reference": 0.75, "pages": 1.00})
"""Upper edge of each part's share of the titles: 60 % train language models, 15 % are positives, 25 % become pages."""


def partition_of(title: str) -> Part:
    """The one part that a summary of this title is in, by a hash of the title alone."""
    position = int.from_bytes(hashlib.sha256(title.encode()).digest()[:8], "big") / 2**64
    return next(part for part, below in PART_BELOW.items() if position < below or part == "pages")


def summaries(language: str, part: Part) -> Iterator[tuple[str, str]]:
    """Title and text of every Wikipedia summary of one part, each title once, in the order of their file.

    Args:
        language: en, fr or es.
        part: which of the three.

    Raises:
        AssetError: no summaries in this language, or they cannot be had.
    """
    name = f"wiki-summaries-{language}"
    if name not in PUBLISHED:
        raise AssetError(f"there are no summaries in {language!r}, but in {', '.join(LANGUAGES)}")
    with obtain(PUBLISHED[name]).open(encoding="utf-8") as file:
        entries: dict[str, dict[str, str]] = json.load(file)
    # Some articles are listed under several names: one title, one text.
    texts = {entry["title"]: entry["extract"] for entry in entries.values()}
    return ((title, text) for title, text in texts.items() if partition_of(title) == part)


def sentences(language: str) -> list[str]:
    """The labelled sentences of one language (ISO 639-1), about 1,000 from web pages and news; empty if there are none.

    Raises:
        AssetError: they cannot be had.
    """
    prefix = f"{language}\t"
    with obtain(PUBLISHED["eld-sentences"]).open(encoding="utf-8") as file:
        return [line.removeprefix(prefix).rstrip("\n") for line in file if line.startswith(prefix)]


# ---- text that nobody cites ----

_BOILERPLATE = MappingProxyType(
    {
        "en": (
            "Home | About us | Contact | Log in | Register | My account | Basket (0)",
            "We use cookies to give you the best experience. By continuing you accept our cookie policy.",
            "Subscribe to our newsletter and get 10 % off your first order!",
            "Add to basket. In stock, free delivery on orders over 50. Click here to see more offers.",
            "Share on Facebook | Tweet | Pin it | E-mail this page to a friend",
            "All rights reserved. Terms and conditions. Privacy policy. Site map.",
            "Posted by admin | 3 comments | Leave a reply | Older posts | Newer posts",
            "You must be logged in to post a comment. Forgot your password?",
        ),
        "fr": (
            "Accueil | Qui sommes-nous | Contact | Connexion | S'inscrire | Mon compte | Panier (0)",
            "Nous utilisons des cookies pour vous offrir la meilleure expérience. En continuant, vous les acceptez.",
            "Abonnez-vous à notre newsletter et recevez 10 % de remise sur votre première commande !",
            "Ajouter au panier. En stock, livraison gratuite dès 50 euros. Cliquez ici pour voir nos offres.",
            "Partager sur Facebook | Tweeter | Épingler | Envoyer cette page à un ami",
            "Tous droits réservés. Conditions générales. Politique de confidentialité. Plan du site.",
            "Publié par admin | 3 commentaires | Laisser un commentaire | Articles plus anciens",
            "Vous devez être connecté pour publier un commentaire. Mot de passe oublié ?",
        ),
        "es": (
            "Inicio | Quiénes somos | Contacto | Iniciar sesión | Registrarse | Mi cuenta | Carrito (0)",
            "Utilizamos cookies para ofrecerle la mejor experiencia. Si continúa, acepta nuestra política de cookies.",
            "¡Suscríbete a nuestro boletín y recibe un 10 % de descuento en tu primera compra!",
            "Añadir al carrito. En stock, envío gratis a partir de 50 euros. Haz clic aquí para ver más ofertas.",
            "Compartir en Facebook | Tuitear | Enviar esta página a un amigo",
            "Todos los derechos reservados. Términos y condiciones. Política de privacidad. Mapa del sitio.",
            "Publicado por admin | 3 comentarios | Deja un comentario | Entradas antiguas",
            "Debes iniciar sesión para publicar un comentario. ¿Olvidaste tu contraseña?",
        ),
    }
)

SALAD_SHARE = 0.1
"""Share of pages that are words of encyclopedia text in no order: a bag of words cannot tell them, so that no
classifier of words is perfect on these pages, as none is on a crawl."""


def crawl_like(language: str, n: int, seed: int) -> list[str]:
    """`n` texts as a crawl has them: mostly unrelated sentences, with lines of navigation and trade; some word salad.

    They hold no page of the sample crawl and no text that a language model is trained on.

    Args:
        language: en, fr or es.
        n: how many.
        seed: another seed, other texts.

    Raises:
        AssetError: no texts in this language, or they cannot be had.
    """
    plain = sentences(language)
    words = [word for _, text in summaries(language, "reference") for word in text.split()]
    rng = random.Random(f"crawl_like {language} {seed}")  # noqa: S311 - texts, no secrets
    return [_crawl_page(rng, plain, words, _BOILERPLATE[language]) for _ in range(n)]


def _crawl_page(
    rng: random.Random, plain: Sequence[str], words: Sequence[str], boilerplate: Sequence[str]
) -> str:
    if rng.random() < SALAD_SHARE:
        return " ".join(rng.choices(words, k=rng.randint(40, 200)))
    lines = [" ".join(rng.choices(plain, k=rng.randint(1, 4))) for _ in range(rng.randint(1, 4))]
    for _ in range(rng.choice((0, 0, 1, 2, 4))):
        lines.insert(rng.choice((0, len(lines))), rng.choice(boilerplate))
    return "\n".join(lines)
