"""Addresses of databases that cannot be read, with a password to look for."""

from __future__ import annotations

CANARY = "CaNaRy17"
MALFORMED = [
    f"postgres//me:{CANARY}@h/db",
    f"me:{CANARY}@h",
    CANARY,
    f"postgresql://me:{CANARY}%zz@h/db",
    f"postgresql://me:{CANARY}@[::1/db",
    f"postgresql://me:a@{CANARY}@127.0.0.1/db",
    f"postgresql://me:a/{CANARY}@127.0.0.1/db",
    f"postgresql://me:12/{CANARY}@127.0.0.1/db",
    f"postgresql://me:a@b:{CANARY}@127.0.0.1/db",
    f"postgresql://me:a@127.0.0.1:{CANARY}/db",
    f"postgresql://127.0.0.1/db?passwort={CANARY}",
    f"host=h password=a {CANARY}",
    f"host=h password='{CANARY}",
    f"host=h port={CANARY}",
    f"host=h pass word={CANARY}",
]
