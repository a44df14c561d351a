"""The pieces of which every invented name consists: two words, each from a list of its own.

So a policy with a token for each word never needs to know a name: it copies two tokens. No word is in two lists.
"""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


GIVEN = _words(
    "Kelo Tavi Zed Orin Mala Brisa Juno Pell Sova Dario Lenka Ruvo Imre Nadia Cass Wilo Ester Hovan Yara Quill "
    "Bodo Tamsin Ulla Fenn Rika Ivo Selm Odra Vico Anka"
)
FAMILY = _words(
    "Bram Tolun Orvek Hask Imar Sandel Vetch Korda Lumm Perrin Drose Avill Nyberg Stroud Quade Falk Wesker Juric "
    "Osman Thale Rudd Balint Ekholm Marsh Zeller Grieve Holub Cray Vann Dessel"
)
CITY = ("Port", "Lake", "Fort", "Mount", "Old", "New", "Saint", "Cape")
COUNTRY = ("Upper", "Lower", "Greater", "Lesser", "Inner", "Outer", "Western", "Eastern")
ROOT = _words(
    "Selda Arvon Miren Tolva Kesh Brunn Doria Pelago Ostra Venn Lyra Hald Corin Zama Ruska Elm Garda Navor Sirta Belmo"
)
ADJECTIVE = _words(
    "Silent Golden Broken Hidden Crimson Distant Frozen Gentle Hollow Lonely Narrow Painted Restless Scarlet Second "
    "Velvet"
)
NOUN = _words(
    "Harbor Orchard Lantern Bridge Winter Garden River Mirror Letter Island Window Forest Station Feather Clock Summer"
)

#: Kind of entity -> the lists of its first and its second word.
PIECES = {
    "person": (GIVEN, FAMILY),
    "city": (CITY, ROOT),
    "country": (COUNTRY, ROOT),
    "book": (ADJECTIVE, NOUN),
}
