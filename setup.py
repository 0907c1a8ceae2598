"""The description of the package: README.md, whose links a package index can follow only if they are absolute.

Set FKJOIN_HOME to the address of the release's files, such as https://host/owner/fkjoin/blob/v0.1.0, when you build
one. Pictures are then those under .../raw/v0.1.0/.
"""

import os
import re
from pathlib import Path

from setuptools import setup

home = os.environ.get("FKJOIN_HOME", "").rstrip("/")
text = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
if home:
    text = re.sub(r"(!\[[^\]]*\]\()(?!https?:)", rf"\1{home.replace('/blob/', '/raw/')}/", text)
    text = re.sub(r"\]\((?!https?:)", f"]({home}/", text)
setup(long_description=text, long_description_content_type="text/markdown")
