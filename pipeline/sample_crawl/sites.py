"""Sites: the navigation lines and footers that all pages of a site share."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.sample_crawl.keyed_random import KeyedRandom


@dataclass(frozen=True)
class Phrases:
    """Texts for the sites of a language.

    A navigation link has at most 18 characters. Navigation and footer together have over 300.
    """

    nav: tuple[str, ...]
    footer: tuple[str, ...]
    commercial_words: tuple[str, ...]


@dataclass(frozen=True)
class Site:
    """One site."""

    host: str  # under .example, a domain that nobody can register (RFC 2606)
    nav: tuple[str, ...]
    footer: tuple[str, ...]


def _parse_phrases(text: str) -> Phrases:
    # An indented line continues the line before.
    nav, *footer, commercial = text.strip().replace("\n    ", " ").splitlines()
    return Phrases(tuple(nav.split(", ")), tuple(footer), tuple(commercial.split()))


_PHRASES = {
    "en": _parse_phrases("""
Home, About us, Contact, Log in, Register, Search, News, Archive, Shop, Help, Sitemap,
    Read more
{host} uses cookies to offer you a better service. By browsing on you agree to our use of
    cookies. Settings | Accept
We and our partners store information on your device to measure our audience and to show
    you content that suits you.
© 2026 {host}. All rights reserved. No part may be reproduced without permission. Terms
    of use | Privacy | Imprint
cheap buy online best price discount sale free shipping order now deal coupon watches
    shoes casino bonus loans outlet
"""),
    "fr": _parse_phrases("""
Accueil, À propos, Contact, Connexion, Inscription, Recherche, Actualités, Archives,
    Boutique, Aide, Plan du site
{host} utilise des cookies pour améliorer ses services. En poursuivant votre visite, vous
    en acceptez l'utilisation.
Nos partenaires et nous-mêmes stockons des informations sur votre appareil afin de
    mesurer l'audience de ce site.
© 2026 {host}. Tous droits réservés. Reproduction interdite sans accord écrit. Mentions
    légales | Confidentialité
pas cher acheter en ligne meilleur prix promotion soldes livraison gratuite commander
    montres chaussures casino crédit
"""),
    "es": _parse_phrases("""
Inicio, Quiénes somos, Contacto, Entrar, Registrarse, Buscar, Noticias, Archivo, Tienda,
    Ayuda, Mapa del sitio
{host} utiliza cookies para mejorar sus servicios. Si continúa navegando, acepta su uso.
    Aceptar todo | Configuración
Nosotros y nuestros socios almacenamos información en su dispositivo para medir la
    audiencia de este sitio web.
© 2026 {host}. Todos los derechos reservados. Prohibida su reproducción sin permiso
    escrito. Aviso legal | Privacidad
barato comprar en línea mejor precio descuento rebajas envío gratis oferta relojes
    zapatos casino préstamos cupón ahora
"""),
}

_HOST_NOUNS = (
    "harbour",
    "lantern",
    "orchard",
    "meadow",
    "quarry",
    "beacon",
    "atlas",
    "ferry",
    "loom",
    "pioneer",
    "summit",
)


def get_phrases(language: str) -> Phrases:
    """Return the phrases of a language, English ones if it has none: many sites mix languages."""
    return _PHRASES.get(language, _PHRASES["en"])


def make_site(language: str, index: int, seed: int) -> Site:
    """Return the site with this index among the sites of its language."""
    rng = KeyedRandom(seed, "site", language, index)
    host = f"www.{rng.pick(_HOST_NOUNS)}-{index}.{language}.example"
    phrases = get_phrases(language)
    nav = (host, *rng.shuffled(phrases.nav)[:6])
    return Site(host, nav, tuple(line.format(host=host) for line in phrases.footer))
