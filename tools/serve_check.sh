#!/usr/bin/env bash
# Checks a bundle with a real server: tools/serve_check.sh BUNDLE --images FOLDER [options]
#
# Starts the server on loopback on a copy of the bundle, waits until it is ready, sends requests
# through the bundle's client with bad pictures among the good ones, compares the captions with those
# of tfcap.caption, prints latency and memory, and ends the server. Exits with 1 if a request failed
# or a caption differs.
#
#   --server docker     the official image tensorflow/serving (the default)
#   --server kserve     KServe 0.21 from pip, at the REST path of TF Serving
#   --server triton     Triton from pip (nvidia-pytriton 0.7), with dynamic batching
#   --server session    TensorFlow's session loader behind TF Serving's gRPC API; no real server
#   --images FOLDER     pictures to caption
#   --model_dir RUN     the run whose captions are right; by default the SavedModel itself is asked
#   --requests 200      requests of the first check
#   --seed NUMBER       for an export that samples: the random seed of all captions
#   --load MINUTES      then sends requests for so long, for each number of --clients
#   --clients "8 32 64"
#   --next SAVED_MODEL  then rolls to this version under load, and asks for its captions
#   --kill              then kills the server under load and starts it again
#   --image NAME        the image of --server docker
#   --port 8501         its port; the two ports after it are used as well
#   --environments DIR  where the environments of kserve and triton are made and kept
#   --output FOLDER     keeps the figures of each load as JSON
#
# PYTHON names the interpreter with tfcap, by default python.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python}
server=docker images='' model_dir='' requests=200 load='' clients="8 32 64" next='' kill='' port=8501
image=tensorflow/serving:latest
environments=${XDG_CACHE_HOME:-$HOME/.cache}/tfcap/servers
seed='' output='' sender='' container=''

usage() { sed -n '2,/^set -euo/p' "${BASH_SOURCE[0]}" | sed '$d; s/^# \{0,1\}//'; }
fail() { echo "error: $*" >&2; exit 2; }

read_options() {
    bundle=''
    while [ $# -gt 0 ]; do
        case $1 in
            --help) usage; exit 0 ;;
            --kill) kill=yes; shift; continue ;;
            --server | --images | --model_dir | --requests | --seed | --load | --clients | --next | --image | \
                --port | --environments | --output)
                [ $# -gt 1 ] || fail "$1 needs a value. See --help."
                printf -v "${1#--}" %s "$2"
                shift 2
                continue
                ;;
            -*) fail "$1 is no option. See --help." ;;
        esac
        [ -z "$bundle" ] || fail "only one bundle can be checked. Received: $bundle and $1."
        bundle=$1
        shift
    done
    [ -n "$bundle" ] || fail "give the directory of the bundle. See --help."
    [ -f "$bundle/client/captions_client.py" ] ||
        fail "$bundle must hold client/captions_client.py. Export the run with --bundle."
    [ -d "$images" ] || fail "--images must be a folder of pictures. Received: '$images'."
    case $server in docker | kserve | triton | session) ;; *) fail "--server must be docker, kserve, triton or session. Received: $server." ;; esac
}

newest() { find "$1" -mindepth 1 -maxdepth 1 -type d -name '[0-9]*' -printf '%f\n' | sort -n | tail -n 1; }

# environment NAME REQUIREMENT...: makes a virtual environment once.
environment() {
    local place=$environments/$1
    shift
    if [ ! -e "$place/complete" ]; then
        echo "making the environment $place: $*"
        rm -rf "$place"
        "$python" -c 'import sys, venv; venv.create(sys.argv[1], with_pip=True)' "$place"
        "$place/bin/python" -m pip install -q "$@"
        touch "$place/complete"
    fi
}

# ---- Servers: `start_...` writes the process to $work/pid. ----

# background COMMAND...: in a process group of its own, so that all its processes can be ended.
background() {
    setsid "$@" >> "$work/server.log" 2>&1 &
    echo $! > "$work/pid"
}

start_kserve() {
    environment kserve 'kserve>=0.21,<0.22' 'tensorflow>=2.20,<2.21'
    background "$environments/kserve/bin/python" "$here/servers/kserve_captions.py" \
        --base_path "$work/served" --port "$port"
}

start_triton() {
    environment triton 'nvidia-pytriton>=0.7,<0.8' 'numpy>=1.26,<2' 'tensorflow>=2.20,<2.21'
    local libraries # Triton's Python backend needs libpython
    libraries=$("$environments/triton/bin/python" -c 'import sysconfig; print(sysconfig.get_config_var("LIBDIR"))')
    background env "LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
        "$environments/triton/bin/python" "$here/servers/triton_captions.py" \
        --base_path "$work/served" --port "$port"
}

start_session() {
    background env "PYTHONPATH=$here/../tests${PYTHONPATH:+:$PYTHONPATH}" \
        "$python" -m helpers.prediction_service --base_path "$work/served/models.config" \
        --base "$work/served" --port "$port"
}

start_docker() {
    local base
    container=tfcap-serve-check-$$-$RANDOM # the name of a killed one is free only after a while
    base=$(sed -n 's/.*base_path: *"\([^"]*\)".*/\1/p' "$work/served/models.config" | head -n 1)
    docker run --detach --rm --name "$container" -p "127.0.0.1:$port:8501" -v "$work/served:$base:ro" \
        "$image" "--model_config_file=$base/models.config" --enable_batching=true \
        "--batching_parameters_file=$base/batching.config" \
        "--monitoring_config_file=$base/monitoring.config" \
        --model_config_file_poll_wait_seconds=1 > /dev/null
    docker inspect --format '{{.State.Pid}}' "$container" > "$work/pid"
}

start() {
    case $server in
        kserve) start_kserve ;;
        triton) start_triton ;;
        session) start_session ;;
        docker) start_docker ;;
    esac
}

# end SIGNAL: ends the server and waits until its processes are gone.
end() {
    if [ "$server" = docker ]; then
        docker kill --signal "$1" "$container" > /dev/null 2>&1 || true
        return
    fi
    local pid
    pid=$(cat "$work/pid" 2> /dev/null) || return 0
    kill -s "$1" -- "-$pid" 2> /dev/null || true
    for _ in $(seq 150); do
        kill -0 -- "-$pid" 2> /dev/null || return 0
        sleep 0.2
    done
    kill -s KILL -- "-$pid" 2> /dev/null || true
}

protocol() { case $server in triton) echo v2 ;; session) echo grpc ;; *) echo rest ;; esac; }
url() { case $server in session) echo "127.0.0.1:$port" ;; *) echo "http://127.0.0.1:$port" ;; esac; }

wait_ready() {
    "$python" - "$work/served/client" "$(url)" "$(protocol)" << 'END' || { tail -n 20 "$work/server.log" >&2; exit 1; }
import sys
sys.path.insert(0, sys.argv[1])
import captions_client
try:
    captions_client.Client(sys.argv[2], protocol=sys.argv[3]).wait(180)
except captions_client.ServerError as error:
    sys.exit(f"error: {error}")
END
}

# ---- Checks ----

# captions MODEL FILE: what tfcap.caption says about the pictures.
captions() { "$python" -m tfcap.caption --model_dir "$1" ${seed:+--seed "$seed"} --json "$images" > "$2"; }

# send NAME OPTION...: sends requests; the figures go to NAME.json.
send() {
    local name=$1
    shift
    local keep=()
    [ -z "$output" ] || keep=(--output "$output/$server-$name.json")
    "$python" "$here/serve_load.py" --client "$work/served/client" --url "$(url)" \
        --protocol "$(protocol)" --pid_file "$work/pid" ${seed:+--seed "$seed"} "${keep[@]}" "$@"
}

# send_behind NAME OPTION...: sends in the background, and returns when the load is under way.
send_behind() {
    rm -f "$work/begun"
    send "$@" --clients 8 --begun "$work/begun" &
    sender=$!
    while [ ! -e "$work/begun" ] && kill -0 $sender 2> /dev/null; do sleep 0.2; done
    sleep 10
}

# configure VERSIONS LABELLED: lets a server with a models.config serve these versions.
configure() {
    local lines='' version
    for version in $1; do lines+="versions: $version "; done
    awk -v lines="$lines" -v labelled="$2" '
        /^ *versions:/ { if (!done++) print lines; next }
        /^ *version_labels/ { inside = 1 }
        inside && /^ *value:/ { sub(/[0-9]+/, labelled); inside = 0 }
        { print }' "$work/served/models.config" > "$work/models.config"
    mv "$work/models.config" "$work/served/models.config"
}

# publish VERSION: brings --next; the old version ends after the new one serves.
publish() {
    local old=$(($1 - 1))
    cp -r "$next" "$work/served/.next"
    mv "$work/served/.next" "$work/served/$1" # it appears at once and whole
    case $server in
        docker | session)
            configure "$old $1" "$old" # a label may only name a version that is loaded
            sleep 15
            configure "$1" "$1"
            ;;
    esac
}

roll() {
    local version under=0 label=()
    version=$(($(newest "$work/served") + 1))
    echo "== roll to version $version under load"
    captions "$next" "$work/next.jsonl"
    case $server in docker | session) label=(--label stable) ;; esac
    send_behind roll --expected "$work/expected.jsonl" --expected "$work/next.jsonl" --minutes 1 \
        "${label[@]}"
    publish "$version"
    wait $sender || under=$?
    echo "== version $version alone"
    send rolled --expected "$work/next.jsonl" --requests 100 "${label[@]}" || under=$?
    mv "$work/next.jsonl" "$work/expected.jsonl"
    return $under
}

kill_and_restart() {
    echo "== kill -9 under load, and start again"
    send_behind kill --expected "$work/expected.jsonl" --minutes 1.5
    end KILL
    sleep 2
    start
    wait $sender
}

main() {
    read_options "$@"
    work=$(mktemp -d)
    trap 'end TERM; rm -rf "$work"' EXIT
    cp -r "$bundle" "$work/served"
    local failed=0 number
    captions "${model_dir:-$bundle/$(newest "$bundle")}" "$work/expected.jsonl"
    [ -z "$output" ] || mkdir -p "$output"
    start
    wait_ready
    echo "== $requests requests to $server with version $(newest "$work/served")"
    send check --expected "$work/expected.jsonl" --requests "$requests" --clients 4 || failed=1
    if [ -n "$load" ]; then
        for number in $clients; do
            echo "== $load minutes of load"
            send "load-$number" --expected "$work/expected.jsonl" --clients "$number" --minutes "$load" || failed=1
        done
    fi
    [ -z "$next" ] || roll || failed=1
    [ -z "$kill" ] || kill_and_restart || failed=1
    [ $failed = 0 ] && echo "== all answers are right" || echo "error: see above" >&2
    return $failed
}

main "$@"; exit
