#!/bin/sh
# Makes the image that ours are built on, Debian 12 with a Java 17 runtime, Python 3.11 and tini, and prints its name: from the
# public Debian image where an image registry is reached, else with debootstrap from the package index that apt is set to (as root).
# A machine keeps the image under this name: other packages need another name.
set -eu
name=fkjoin-java:17-tini
packages="openjdk-17-jre-headless python3-venv tini"
if docker image inspect "$name" >/dev/null 2>&1; then echo "$name"; exit 0; fi
if timeout 60 docker pull --quiet debian:bookworm-slim >/dev/null 2>&1; then
  printf 'FROM debian:bookworm-slim\nRUN mkdir -p /usr/share/man/man1 && apt-get update && apt-get install -y %s\n' \
    "--no-install-recommends $packages" | docker build --quiet --tag "$name" - >/dev/null
  echo "$name"
  exit 0
fi
if [ "$(id -u)" != 0 ]; then
  echo "no image registry is reached, and only root can make an image with debootstrap" >&2
  exit 1
fi
root=$(mktemp -d)
trap 'umount "$root/proc" 2>/dev/null || true; rm -rf "$root"' EXIT
{
  command -v debootstrap >/dev/null || DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends debootstrap
  index=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' | head -1)
  debootstrap --variant=minbase bookworm "$root" "${index:-http://deb.debian.org/debian}"
  cp /etc/apt/apt.conf.d/* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
  mount -t proc proc "$root/proc"
  mkdir -p "$root/usr/share/man/man1"
  chroot "$root" apt-get install -y --no-install-recommends $packages
  umount "$root/proc"
  rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/locale/*
  rm -rf "$root"/etc/apt/apt.conf.d/*proxy*
  tar -C "$root" -c . | docker import - "$name"
} >"${TMPDIR:-/tmp}/fkjoin-base.log" 2>&1 || { tail -20 "${TMPDIR:-/tmp}/fkjoin-base.log" >&2; exit 1; }
echo "$name"
