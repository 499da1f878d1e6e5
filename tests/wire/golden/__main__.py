"""`python -m tests.wire.golden --write` remakes current.json and what docs/protocol.md has of it and of the types."""

from __future__ import annotations

import sys

from tests.wire.golden import CURRENT, PAGE, SHOWN, encode_all, load, shown_as, text_of
from tests.wire.golden.field_tables import with_tables

if sys.argv[1:] != ["--write"]:
    sys.exit(__doc__)
CURRENT.write_text(text_of(encode_all()), encoding="utf-8")
golden = load(CURRENT)
page = with_tables(PAGE.read_text(encoding="utf-8"))
PAGE.write_text(SHOWN.sub(lambda block: shown_as(block["name"], golden[block["name"]]), page), encoding="utf-8")
