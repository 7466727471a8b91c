"""Codes of languages: the table that maps labels of models, and suggestions for wrong codes.

The column `language` has the codes of lid.176: ISO 639-1 where it has one, else ISO 639-3. Labels of
GlotLID, OpenLID and NLLB's model name a language by ISO 639-3 and a script by ISO 15924.

    convert_label("eng_Latn")           # "en"
    convert_label("zho_Hant")           # "zh": both scripts of Chinese are usual
    convert_label("hin_Latn")           # "hi-Latn": Hindi is usually not in Latin letters
    normalize_code("nob")               # "no": what a config means by the code
"""

from __future__ import annotations

import difflib
import mmap
import re
import struct
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BeforeValidator

# fastText's prefix of every label.
LABEL_PREFIX = "__label__"

# The 176 labels of lid.176.bin and lid.176.ftz, and their names.
#
# Source: https://fasttext.cc/docs/en/language-identification.html; the names are those of ISO 639
# and of the Wikipedias of which the model was made.
_NAMES = """
af:afrikaans als:alemannic am:amharic an:aragonese ar:arabic arz:egyptian as:assamese
ast:asturian av:avaric az:azerbaijani azb:southazerbaijani ba:bashkir bar:bavarian
bcl:bikol be:belarusian bg:bulgarian bh:bihari bn:bengali bo:tibetan bpy:bishnupriya
br:breton bs:bosnian bxr:buryat ca:catalan cbk:chavacano ce:chechen ceb:cebuano ckb:sorani
co:corsican cs:czech cv:chuvash cy:welsh da:danish de:german diq:zazaki dsb:lowersorbian
dty:doteli dv:divehi el:greek eml:emilian en:english eo:esperanto es:spanish et:estonian
eu:basque fa:persian fi:finnish fr:french frr:northfrisian fy:frisian ga:irish gd:gaelic
gl:galician gn:guarani gom:konkani gu:gujarati gv:manx he:hebrew hi:hindi hif:fijihindi
hr:croatian hsb:uppersorbian ht:haitian hu:hungarian hy:armenian ia:interlingua
id:indonesian ie:interlingue ilo:iloko io:ido is:icelandic it:italian ja:japanese
jbo:lojban jv:javanese ka:georgian kk:kazakh km:khmer kn:kannada ko:korean krc:karachay
ku:kurdish kv:komi kw:cornish ky:kyrgyz la:latin lb:luxembourgish lez:lezgian
li:limburgish lmo:lombard lo:lao lrc:northernluri lt:lithuanian lv:latvian mai:maithili
mg:malagasy mhr:mari min:minangkabau mk:macedonian ml:malayalam mn:mongolian mr:marathi
mrj:hillmari ms:malay mt:maltese mwl:mirandese my:burmese myv:erzya mzn:mazanderani
nah:nahuatl nap:neapolitan nds:lowgerman ne:nepali new:newari nl:dutch nn:nynorsk
no:norwegian oc:occitan or:odia os:ossetian pa:punjabi pam:pampanga pfl:palatine pl:polish
pms:piedmontese pnb:westernpunjabi ps:pashto pt:portuguese qu:quechua rm:romansh
ro:romanian ru:russian rue:rusyn sa:sanskrit sah:yakut sc:sardinian scn:sicilian sco:scots
sd:sindhi sh:serbocroatian si:sinhala sk:slovak sl:slovenian so:somali sq:albanian
sr:serbian su:sundanese sv:swedish sw:swahili ta:tamil te:telugu tg:tajik th:thai
tk:turkmen tl:tagalog tr:turkish tt:tatar tyv:tuvan ug:uyghur uk:ukrainian ur:urdu
uz:uzbek vec:venetian vep:veps vi:vietnamese vls:westflemish vo:volapuk wa:walloon
war:waray wuu:wu xal:kalmyk xmf:mingrelian yi:yiddish yo:yoruba yue:cantonese zh:chinese
"""


def _parse_pairs(pairs: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for pair in pairs.split():
        first, _, second = pair.partition(":")
        found[first] = second
    return MappingProxyType(found)


# Code -> name in lower case, without blanks.
LID_176 = _parse_pairs(_NAMES)


# ISO 639-3 -> code, for all languages with a code in ISO 639-1.
#
# Source: https://iso639-3.sil.org/code_tables (edition of 2026-02), without Avestan and Pali, which
# have no usual script. Two codes are those of lid.176 and of the Wikipedias: no for Bokmål (nob),
# sh for Serbo-Croatian (hbs).
_ISO_639_3 = """
aar:aa abk:ab afr:af aka:ak amh:am ara:ar arg:an asm:as ava:av aym:ay aze:az bak:ba bam:bm
bel:be ben:bn bis:bi bod:bo bos:bs bre:br bul:bg cat:ca ces:cs cha:ch che:ce chu:cu chv:cv
cor:kw cos:co cre:cr cym:cy dan:da deu:de div:dv dzo:dz ell:el eng:en epo:eo est:et eus:eu
ewe:ee fao:fo fas:fa fij:fj fin:fi fra:fr fry:fy ful:ff gla:gd gle:ga glg:gl glv:gv grn:gn
guj:gu hat:ht hau:ha hbs:sh heb:he her:hz hin:hi hmo:ho hrv:hr hun:hu hye:hy ibo:ig ido:io
iii:ii iku:iu ile:ie ina:ia ind:id ipk:ik isl:is ita:it jav:jv jpn:ja kal:kl kan:kn kas:ks
kat:ka kau:kr kaz:kk khm:km kik:ki kin:rw kir:ky kom:kv kon:kg kor:ko kua:kj kur:ku lao:lo
lat:la lav:lv lim:li lin:ln lit:lt ltz:lb lub:lu lug:lg mah:mh mal:ml mar:mr mkd:mk mlg:mg
mlt:mt mon:mn mri:mi msa:ms mya:my nau:na nav:nv nbl:nr nde:nd ndo:ng nep:ne nld:nl nno:nn
nob:no nor:no nya:ny oci:oc oji:oj ori:or orm:om oss:os pan:pa pol:pl por:pt pus:ps que:qu
roh:rm ron:ro run:rn rus:ru sag:sg san:sa sin:si slk:sk slv:sl sme:se smo:sm sna:sn snd:sd
som:so sot:st spa:es sqi:sq srd:sc srp:sr ssw:ss sun:su swa:sw swe:sv tah:ty tam:ta tat:tt
tel:te tgk:tg tgl:tl tha:th tir:ti ton:to tsn:tn tso:ts tuk:tk tur:tr twi:tw uig:ug ukr:uk
urd:ur uzb:uz ven:ve vie:vi vol:vo wln:wa wol:wo xho:xh yid:yi yor:yo zha:za zho:zh zul:zu
"""

# More codes of ISO 639-3 -> code.
#
# The first two lines are the written standards of macrolanguages, by which GlotLID, OpenLID and
# NLLB's model name them, and Filipino. Other varieties, such as Dari (prs) or the Arabic of Morocco
# (ary), keep their codes. The last line has languages that lid.176 names as Wikipedia does.
_STANDARD_VARIETIES = """
als:sq arb:ar ayr:ay azj:az cmn:zh ekk:et fil:tl fuv:ff gaz:om gug:gn khk:mn kmr:ku knc:kr
lvs:lv npi:ne ory:or pbt:ps pes:fa plt:mg quy:qu swh:sw uzn:uz ydd:yi zsm:ms
bho:bh egl:eml gsw:als
"""

# Codes of ISO 639-3 that lid.176 has too.
_SAME_CODES = """
arz ast azb bar bcl bpy bxr cbk ceb ckb diq dsb dty frr gom hif hsb ilo jbo krc lez lmo lrc
mai mhr min mrj mwl myv mzn nap nds new pam pfl pms pnb rue sah scn sco tyv vec vep vls war
wuu xal xmf yue
"""

# Codes that others write -> code: withdrawn ones (IANA's language subtag registry), Norwegian
# Bokmål, and the bibliographic codes of ISO 639-2.
_OLD_CODES = """
in:id iw:he ji:yi jw:jv mo:ro nb:no
alb:sq arm:hy baq:eu bih:bh bur:my chi:zh cze:cs dut:nl fre:fr geo:ka ger:de gre:el ice:is mac:mk
mao:mi may:ms per:fa rum:ro slo:sk tib:bo wel:cy
"""

# Script -> languages that are usually written in it; all others are usually written in Latin
# letters. Chinese and Serbian have two usual scripts, which lid.176 does not tell apart.
_SCRIPTS = """
Arab: ar arz azb ckb fa ks lrc mzn pnb ps sd ug ur
Armn: hy
Beng: as bn bpy
Cans: cr iu oj
Cyrl: ab av ba be bg bxr ce cu cv kk krc kv ky lez mhr mk mn mrj myv os ru rue sah sh sr tg tt tyv uk
  xal
Deva: bh dty gom hi mai mr ne new sa
Ethi: am ti
Geor: ka xmf
Grek: el
Gujr: gu
Guru: pa
Hang: ko
Hani: wuu yue zh
Hans: wuu yue zh
Hant: wuu yue zh
Hebr: he yi
Jpan: ja
Khmr: km
Knda: kn
Laoo: lo
Latn: sh sr
Mlym: ml
Mymr: my
Orya: or
Sinh: si
Taml: ta
Telu: te
Thaa: dv
Thai: th
Tibt: bo dz
Yiii: ii
"""


def _parse_scripts(table: str) -> Mapping[str, frozenset[str]]:
    """Return code -> its usual scripts, for all languages that use other scripts than Latin."""
    scripts: dict[str, set[str]] = {}
    script = ""
    for word in table.split():
        if word.endswith(":"):
            script = word.removesuffix(":")
        else:
            scripts.setdefault(word, set()).add(script)
    return MappingProxyType({code: frozenset(names) for code, names in scripts.items()})


# ISO 639-3 -> code.
ISO_639_3: Mapping[str, str] = MappingProxyType(
    {
        **_parse_pairs(_ISO_639_3),
        **_parse_pairs(_STANDARD_VARIETIES),
        **{code: code for code in _SAME_CODES.split()},
    }
)
# Every other code -> code.
_CODES: Mapping[str, str] = MappingProxyType({**ISO_639_3, **_parse_pairs(_OLD_CODES)})
_USUAL_SCRIPTS = _parse_scripts(_SCRIPTS)
_LATIN = frozenset({"Latn"})

# Scripts without blanks between words. Tibetan has marks between syllables.
SCRIPTS_WITHOUT_BLANKS = frozenset(
    {"Hani", "Hans", "Hant", "Jpan", "Khmr", "Laoo", "Mymr", "Thai", "Tibt"}
)

# A language and a script: eng_Latn of GlotLID, zh-Hant of BCP 47.
_WITH_SCRIPT = re.compile("([a-z]{2,3})[_-]([A-Z][a-z]{3})")


@cache
def convert_label(label: str) -> str:
    """Return the code of a model's label.

    Codes of other standards and old codes are replaced. A script is left out if the language is
    usually written in it; else the code is a tag of BCP 47. A label that the tables do not have is
    returned unchanged.

    >>> convert_label("als"), convert_label("als_Latn")     # Alemannic, as in lid.176; Albanian
    ('als', 'sq')
    """
    found = _WITH_SCRIPT.fullmatch(label)
    if found is None:
        return label if label in LID_176 else _CODES.get(label, label)
    language, script = found.groups()
    code = ISO_639_3.get(language, language if len(language) == 2 else None)
    if code is None:
        return label
    return code if script in _USUAL_SCRIPTS.get(code, _LATIN) else f"{code}-{script}"


def normalize_code(code: str) -> str:
    """Return the code that documents have where a config says `code`.

    It is `convert_label`, except that the script of a language with several usual ones is kept:
    zh-Hant is not all of zh. Hani is any Chinese script.
    """
    normal = convert_label(code)
    found = _WITH_SCRIPT.fullmatch(code)
    if found is None or found[2] == "Hani" or len(_USUAL_SCRIPTS.get(normal, _LATIN)) == 1:
        return normal
    return f"{normal}-{found[2]}"


def list_scripts(code: str) -> frozenset[str]:
    """Return the scripts of documents with this code, by ISO 15924.

    >>> list_scripts("ja"), list_scripts("hi-Latn"), list_scripts("kbp_Latn")
    (frozenset({'Jpan'}), frozenset({'Latn'}), frozenset({'Latn'}))
    """
    found = _WITH_SCRIPT.fullmatch(code)
    return frozenset({found[2]}) if found else _USUAL_SCRIPTS.get(code, _LATIN)


def has_blanks(code: str) -> bool:
    """Return whether words are separated by blanks in the language."""
    return list_scripts(code).isdisjoint(SCRIPTS_WITHOUT_BLANKS)


def _refuse_false(code: object) -> object:
    if code is False:
        raise ValueError("YAML reads the code no as false; write 'no' in quotes")
    return code


# A code in a config, in the form that documents have.
LanguageCode: TypeAlias = Annotated[
    str, BeforeValidator(_refuse_false), AfterValidator(normalize_code)
]


# Of a fastText model: its first bytes, and where its parts begin.
_MAGIC = struct.pack("<i", 793712314)
_NUM_LABELS_AT = 72
_FIRST_ENTRY = 92
_LABEL_ENTRY = re.compile(LABEL_PREFIX.encode() + rb"([^\0]{1,100})\0.{8}\x01", re.DOTALL)


def read_labels(model: Path) -> frozenset[str] | None:
    """Return the labels of a fastText model, without their prefix; None if it is no such file.

    Only the dictionary is read, which is the beginning of the file. Source: `Args::save` and
    `Dictionary::save` in fastText 0.9: magic number and version, 12 integers and a double, the
    numbers of entries, words and labels, then the entries: the text, NUL, 8 bytes, 1 for a label.
    """
    with model.open("rb") as file:
        header = file.read(_FIRST_ENTRY)
        if len(header) < _FIRST_ENTRY or header[:4] != _MAGIC:
            return None
        (num_labels,) = struct.unpack_from("<i", header, _NUM_LABELS_AT)
        labels: set[str] = set()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            for entry in _LABEL_ENTRY.finditer(content, _FIRST_ENTRY):
                labels.add(entry[1].decode("utf-8", "replace"))
                if len(labels) == num_labels:
                    return frozenset(labels)
    return None


# Names and codes of countries that are mistaken for codes of languages -> code.
_MISTAKEN = _parse_pairs(
    """
castilian:es farsi:fa filipino:tl mandarin:zh bokmål:no
cn:zh cz:cs dk:da gr:el jp:ja kr:ko se:sv ua:uk
"""
)


def suggest_language(wrong: str, known: Collection[str]) -> str | None:
    """Return the known code that is probably meant, or None.

    >>> suggest_language("english", LID_176), suggest_language("pt-BR", LID_176)
    ('en', 'pt')
    """
    name = wrong.strip().lower()
    codes = {LID_176[code]: code for code in LID_176}
    codes |= {**_CODES, **_MISTAKEN}
    primary = re.split("[-_]", name)[0]  # the language of a tag such as zh-Hant-TW
    candidates = (name, convert_label(wrong), primary, codes.get(name), codes.get(primary))
    for candidate in candidates:
        if candidate in known:
            return candidate
    names = [*known, *(name for name, code in codes.items() if code in known)]
    nearest = difflib.get_close_matches(name, names, 1, cutoff=0.5)
    return codes.get(nearest[0], nearest[0]) if nearest else None
