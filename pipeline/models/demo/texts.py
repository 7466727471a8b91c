"""Real texts for the demo: Wikipedia summaries in three disjoint parts, and labelled sentences.

A hash of its title decides which part a summary is in. So no text that language models or
classifiers are trained on is a page of the sample crawl. Equal arguments give equal texts.

    title, text = next(summaries("en", "pages"))
    sentences("fr")[0]
    crawl_like("es", 1_000, seed=0)         # low-quality pages as in a crawl
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

# Languages with summaries.
LANGUAGES = ("en", "fr", "es")

# Increase it if equal arguments give other texts.
VERSION = 1

# Upper limit of each part's range of the hash, 0..1.
#
# 60 % of the titles train language models, 15 % are positives of classifiers, 25 % become pages.
PART_BELOW: Mapping[Part, float] = MappingProxyType(
    {"lm": 0.60, "reference": 0.75, "pages": 1.00}
)


def assign_part(title: str) -> Part:
    """Return the part that a summary is in, by a hash of its title."""
    position = int.from_bytes(hashlib.sha256(title.encode()).digest()[:8], "big") / 2**64
    for part, limit in PART_BELOW.items():
        if position < limit:
            return part
    return "pages"  # a position that was rounded up to 1.0


def summaries(language: str, part: Part) -> Iterator[tuple[str, str]]:
    """Return title and text of the Wikipedia summaries of one part, in the order of their file.

    Args:
        language: en, fr or es.
        part: one of the three parts.

    Raises:
        AssetError: there are no summaries in this language, or they cannot be fetched.
    """
    name = f"wiki-summaries-{language}"
    if name not in PUBLISHED:
        raise AssetError(
            f"no summaries in {language!r}; there are some in {', '.join(LANGUAGES)}"
        )
    with obtain(PUBLISHED[name]).open(encoding="utf-8") as file:
        entries: dict[str, dict[str, str]] = json.load(file)
    # Some articles are listed under several names: keep one text per title.
    texts: dict[str, str] = {}
    for entry in entries.values():
        texts[entry["title"]] = entry["extract"]
    return filter(lambda item: assign_part(item[0]) == part, texts.items())


def sentences(language: str) -> list[str]:
    """Return the labelled sentences of one language, about 1,000 from web pages and news.

    Args:
        language: ISO 639-1. The list is empty if there are none in this language.

    Raises:
        AssetError: they cannot be fetched.
    """
    prefix = f"{language}\t"
    with obtain(PUBLISHED["eld-sentences"]).open(encoding="utf-8") as file:
        return [
            line.removeprefix(prefix).rstrip("\n")
            for line in file
            if line.startswith(prefix)
        ]


_BOILERPLATE = MappingProxyType(
    {
        "en": (
            "Home | About us | Contact | Log in | Register | My account | Basket (0)",
            (
                "We use cookies to give you the best experience. By continuing you accept our "
                "cookie policy."
            ),
            "Subscribe to our newsletter and get 10 % off your first order!",
            (
                "Add to basket. In stock, free delivery on orders over 50. Click here to see more "
                "offers."
            ),
            "Share on Facebook | Tweet | Pin it | E-mail this page to a friend",
            "All rights reserved. Terms and conditions. Privacy policy. Site map.",
            "Posted by admin | 3 comments | Leave a reply | Older posts | Newer posts",
            "You must be logged in to post a comment. Forgot your password?",
        ),
        "fr": (
            (
                "Accueil | Qui sommes-nous | Contact | Connexion | S'inscrire | "
                "Mon compte | Panier (0)"
            ),
            (
                "Nous utilisons des cookies pour vous offrir la meilleure expérience. En "
                "continuant, vous les acceptez."
            ),
            (
                "Abonnez-vous à notre newsletter et recevez 10 % de remise sur votre première "
                "commande !"
            ),
            (
                "Ajouter au panier. En stock, livraison gratuite dès 50 euros. Cliquez ici pour "
                "voir nos offres."
            ),
            "Partager sur Facebook | Tweeter | Épingler | Envoyer cette page à un ami",
            (
                "Tous droits réservés. Conditions générales. Politique de confidentialité. Plan du "
                "site."
            ),
            "Publié par admin | 3 commentaires | Laisser un commentaire | Articles plus anciens",
            "Vous devez être connecté pour publier un commentaire. Mot de passe oublié ?",
        ),
        "es": (
            (
                "Inicio | Quiénes somos | Contacto | Iniciar sesión | Registrarse | Mi cuenta | "
                "Carrito (0)"
            ),
            (
                "Utilizamos cookies para ofrecerle la mejor experiencia. Si continúa, acepta "
                "nuestra política de cookies."
            ),
            "¡Suscríbete a nuestro boletín y recibe un 10 % de descuento en tu primera compra!",
            (
                "Añadir al carrito. En stock, envío gratis a partir de 50 euros. "
                "Haz clic aquí para ver más ofertas."
            ),
            "Compartir en Facebook | Tuitear | Enviar esta página a un amigo",
            (
                "Todos los derechos reservados. Términos y condiciones. Política de privacidad. "
                "Mapa del sitio."
            ),
            "Publicado por admin | 3 comentarios | Deja un comentario | Entradas antiguas",
            "Debes iniciar sesión para publicar un comentario. ¿Olvidaste tu contraseña?",
        ),
    }
)

# Share of pages that are words of encyclopedia text in random order.
#
# A classifier of single words cannot recognize them, so its scores are not perfect, as on a crawl.
SALAD_SHARE = 0.1


def crawl_like(language: str, n: int, seed: int) -> list[str]:
    """Return `n` texts like low-quality pages of a crawl.

    Most are unrelated sentences between lines of navigation and advertising; some are word salad.
    None is a page of the sample crawl or a text that a language model is trained on.

    Args:
        language: en, fr or es.
        n: number of texts.
        seed: another seed gives other texts.

    Raises:
        AssetError: there are no texts in this language, or they cannot be fetched.
    """
    plain = sentences(language)
    words: list[str] = []
    for _, text in summaries(language, "reference"):
        words += text.split()
    # One generator makes all texts in order, so text i depends on all texts before it.
    rng = random.Random(f"crawl_like {language} {seed}")  # noqa: S311 - texts, no secrets
    boilerplate = _BOILERPLATE[language]
    return [_make_crawl_page(rng, plain, words, boilerplate) for _ in range(n)]


def _make_crawl_page(
    rng: random.Random,
    plain: Sequence[str],
    words: Sequence[str],
    boilerplate: Sequence[str],
) -> str:
    if rng.random() < SALAD_SHARE:
        return " ".join(rng.choices(words, k=rng.randint(40, 200)))
    num_lines = rng.randint(1, 4)
    lines = [" ".join(rng.choices(plain, k=rng.randint(1, 4))) for _ in range(num_lines)]
    # Boilerplate is above or below the text, as on a real page. Two pages in five have none.
    for _ in range(rng.choice((0, 0, 1, 2, 4))):
        lines.insert(rng.choice((0, len(lines))), rng.choice(boilerplate))
    return "\n".join(lines)
