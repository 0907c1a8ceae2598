#!/bin/sh
# Prints the path of a browser without a window. It is installed first where it is missing (Debian's, as root).
# Says why not on standard error.
set -u
for name in chromium-headless-shell chromium google-chrome; do
  if command -v "$name" 2>/dev/null; then exit 0; fi
done
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
  echo "there is no chromium, and it takes root and apt-get to install it: install Debian's chromium-headless-shell" >&2
  exit 1
fi
log=${TMPDIR:-/tmp}/fkjoin-browser.log
{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium-headless-shell; } \
  >"$log" 2>&1 || { echo "chromium cannot be installed:" >&2; tail -5 "$log" >&2; exit 1; }
command -v chromium-headless-shell
