#!/bin/sh
# Captions one picture with curl: curl.sh PICTURE [URL] [NAME]
# Prints the JSON answer of TF Serving's REST API.
set -eu
picture=${1:?"give a picture file: curl.sh PICTURE [URL] [NAME]"}
url=${2:-http://127.0.0.1:8501}
name=${3:-captions}
test -r "$picture" || { echo "error: $picture cannot be read" >&2; exit 1; }
{
    printf '{"instances": [{"image_bytes": {"b64": "'
    base64 < "$picture" | tr -d '\n'
    printf '"}}]}'
} | curl --silent --show-error --fail-with-body --max-time 120 --retry 5 --retry-connrefused \
    --header 'Content-Type: application/json' --data-binary @- "$url/v1/models/$name:predict"
echo
