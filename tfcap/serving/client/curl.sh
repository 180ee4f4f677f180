#!/bin/sh
# Captions one picture with curl: curl.sh PICTURE [URL] [NAME] [SEED]
# Prints the JSON answer of TF Serving's REST API. Only an export that samples takes the random seed,
# a whole number, and it must have one.
set -eu
picture=${1:?"give a picture file: curl.sh PICTURE [URL] [NAME] [SEED]"}
url=${2:-http://127.0.0.1:8501}
name=${3:-captions}
seed=${4:-}
case $seed in *[!0-9]* | 0[0-9]*) echo "error: SEED must be a whole number, not $seed" >&2; exit 1 ;; esac
test -r "$picture" || { echo "error: $picture cannot be read" >&2; exit 1; }
{
    printf '{"instances": [{"image_bytes": {"b64": "'
    base64 < "$picture" | tr -d '\n'
    printf '"}%s}]}' "${seed:+, \"seed\": $seed}"
} | curl --silent --show-error --fail-with-body --max-time 120 --retry 5 --retry-connrefused \
    --header 'Content-Type: application/json' --data-binary @- "$url/v1/models/$name:predict"
echo
