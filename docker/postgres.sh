#!/bin/sh
# Prints the folder of PostgreSQL's programs. It is installed first where it is missing (Debian's, as root).
# Says why not on standard error.
set -u
found() { for folder in /usr/lib/postgresql/*/bin; do [ -x "$folder/initdb" ] && echo "$folder" && exit 0; done; }
found
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "there is no PostgreSQL, and it takes root and apt-get to install it: install Debian's postgresql" >&2
  exit 1
fi
log=${TMPDIR:-/tmp}/fkjoin-postgres.log
{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends postgresql; } \
  >"$log" 2>&1 || { echo "PostgreSQL cannot be installed:" >&2; tail -5 "$log" >&2; exit 1; }
found
exit 1
