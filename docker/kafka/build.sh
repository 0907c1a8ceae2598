#!/bin/sh
# Makes the Kafka image of the tests and prints its name: the public one where an image registry is reached, else one built
# from the package indexes alone.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
name=fkjoin-kafka:4.1.1
public=apache/kafka:4.1.1
if docker image inspect "$name" >/dev/null 2>&1; then echo "$name"; exit 0; fi
if timeout 60 docker pull --quiet "$public" >/dev/null 2>&1; then
  docker tag "$public" "$name"
  echo "$name"
  exit 0
fi
base=$("$here/../base.sh")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/libs"
cp "$("${PYTHON:-python3}" "$here/../jars.py" broker)"/*.jar "$work/libs/"
cp "$here/Dockerfile" "$here/start.sh" "$work/"
DOCKER_BUILDKIT=0 docker build --quiet --build-arg BASE="$base" --tag "$name" "$work" >/dev/null
echo "$name"
