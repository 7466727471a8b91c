"""The codes of lid.176, the labels of other fastText models, and suggestions for wrong codes."""

from __future__ import annotations

import difflib
import mmap
import re
import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

# fastText's prefix of every label.
LABEL_PREFIX = "__label__"

# The 176 labels of lid.176.bin and lid.176.ftz, and their names.
#
# Source: https://fasttext.cc/docs/en/language-identification.html; the names are those of ISO 639
# and of the Wikipedias of which the model was made.
_CODES_AND_NAMES = """
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


def _parse_names(codes_and_names: str) -> Mapping[str, str]:
    names: dict[str, str] = {}
    for entry in codes_and_names.split():
        code, _, name = entry.partition(":")
        names[code] = name
    return MappingProxyType(names)


# Code -> name in lower case, without blanks.
LID_176 = _parse_names(_CODES_AND_NAMES)

# Other codes and names for languages of lid.176.
#
# Sources: ISO 639-3's mappings of codes; IANA's language subtag registry, "Preferred-Value" of
# iw, in, ji and jw; and Norwegian Bokmål, whose Wikipedia is `no`.
_OTHER_CODES: Mapping[str, str] = MappingProxyType(
    {
        "nb": "no", "nob": "no", "nor": "no", "iw": "he", "in": "id", "ji": "yi", "jw": "jv",
        "fil": "tl", "filipino": "tl", "cmn": "zh", "mandarin": "zh", "spa": "es",
        "castilian": "es", "deu": "de", "ger": "de", "zho": "zh", "chi": "zh", "jpn": "ja",
        "cn": "zh", "jp": "ja", "kr": "ko", "gr": "el", "ell": "el", "dk": "da", "se": "sv",
        "swe": "sv", "cz": "cs", "ces": "cs", "ua": "uk", "farsi": "fa", "ben": "bn",
        "por": "pt", "pol": "pl", "tur": "tr", "ind": "id", "heb": "he", "ukr": "uk",
    }
)  # fmt: skip


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


def suggest_language(wrong: str, known: Collection[str]) -> str | None:
    """Return the known code that is probably meant, or None.

    >>> suggest_language("english", LID_176), suggest_language("pt-BR", LID_176)
    ('en', 'pt')
    """
    name = wrong.strip().lower()
    codes = {LID_176[code]: code for code in LID_176}
    codes |= _OTHER_CODES
    primary = re.split("[-_]", name)[0]  # the language of a tag such as zh-Hant-TW
    for candidate in (name, primary, codes.get(name), codes.get(primary)):
        if candidate in known:
            return candidate
    names = [*known, *(name for name, code in codes.items() if code in known)]
    nearest = difflib.get_close_matches(name, names, 1, cutoff=0.5)
    return codes.get(nearest[0], nearest[0]) if nearest else None
