"""Names of columns that are hard to get right."""

from __future__ import annotations

NASTY = [
    *("a.b", "ti`ck", "Capital", "two words", " blank ahead", "duck 🦆", "Größe", "ключ"),
    *('double"quote', "single'quote", "[x]", ".dot", "per%cent", "{brace}", "colon: semi;", "(round), comma"),
    *("equals=", "sla/sh", "back\\slash", "select", "*", "a.*", "left", "key", "row", "value", "cls", "0 digit", "$dollar"),
    *("-", "`x`"),
]
KEY, FK, RIGHT = "the.`key` 🦆", "customer.no", "no.`of` customer"
