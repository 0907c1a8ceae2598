"""Fetches the jars of one configuration of ivy.xml into .cache/jars, with the Ivy that PySpark ships.

python docker/jars.py connector|connector-4.0|connector-4.1|broker|rest-catalog     prints the folder
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pyspark

HERE = Path(__file__).parent
CACHE = HERE.parent / ".cache" / "jars"


def fetch(configuration: str) -> Path:
    """The folder with the jars of ``configuration``; they are fetched once."""
    folder = CACHE / configuration
    done = folder / ".complete"
    newest = (HERE / "ivy.xml").stat().st_mtime
    if done.exists() and done.stat().st_mtime >= newest:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    pattern = f"{CACHE}/[conf]/[artifact]-[revision](-[classifier]).[ext]"
    command = ["java", "-jar", str(ivy), "-ivy", str(HERE / "ivy.xml"), "-confs", configuration, "-types", "jar", "bundle"]
    run = subprocess.run([*command, "-retrieve", pattern], capture_output=True, text=True, check=False)
    if run.returncode or not list(folder.glob("*.jar")):
        raise SystemExit(f"the jars of {configuration!r} cannot be fetched:\n{run.stdout[-3000:]}\n{run.stderr[-1000:]}")
    done.touch()
    return folder


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(fetch(sys.argv[1]))
