#!/bin/sh
# Makes the image of the streaming job, fkjoin-job:latest, and prints its name. Needs no network but the package indexes.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}
base=$("$here/../base.sh")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/wheels" "$work/jars"
grep -E -i -v '^(mypy|pytest|hypothesis|ruff|testcontainers|docker|pandas-stubs|librt|ast_serialize|kubeflow_spark_api)' "$root/requirements.lock" >"$work/lock"
"$python" -m pip wheel --quiet --disable-pip-version-check --constraint "$work/lock" --wheel-dir "$work/wheels" "$root[all]" confluent-kafka
cp "$("$python" "$here/../jars.py" connector)"/*.jar "$work/jars/"
cp "$here/Dockerfile" "$here/entrypoint.sh" "$here/job.py" "$work/"
DOCKER_BUILDKIT=0 docker build --quiet --build-arg BASE="$base" --tag fkjoin-job:latest "$work" >/dev/null
echo fkjoin-job:latest
