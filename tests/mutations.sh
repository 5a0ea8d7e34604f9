#!/usr/bin/env bash
# Tries the mutations of mutations.md, in a copy of the tree: the test that each names must fail.
# usage: tests/mutations.sh [NUMBER]…    (all of them, or these; about five seconds each)
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
(cd "$root" && git ls-files -z --cached --others --exclude-standard | tar --null -T - -c) | tar -x -C "$copy"
export CARGO_TARGET_DIR="$copy/target"
# The failure is what counts here, not the smallest case of it.
export PROPTEST_MAX_SHRINK_ITERS=0 RUST_BACKTRACE=0
cd "$copy"

# run BINARY TEST: prints 'passes', 'fails' or 'does not build'
run() {
    cargo build --quiet --tests >build.log 2>&1 || { echo 'does not build'; return; }
    timeout 300 cargo test --quiet --test "$1" -- --exact "$2" >test.log 2>&1 || true
    case $(grep '^test result:' test.log) in
    *'ok. 1 passed'*) echo passes ;;
    *'FAILED. 0 passed; 1 failed'*) echo fails ;;
    *) echo 'breaks or hangs' ;;
    esac
}

# mutate FILE OLD NEW: replaces the one line that reads OLD, but for its indentation
mutate() {
    local line indent found=0
    while IFS= read -r line || [[ -n $line ]]; do
        indent=${line%%[![:space:]]*}
        if [[ ${line#"$indent"} == "$2" ]]; then
            found=$((found + 1))
            line=$indent$3
        fi
        printf '%s\n' "$line"
    done <"$1" >mutated
    [[ $found == 1 ]] || { echo "$1 has $found lines that read: $2" >&2; return 1; }
    cat mutated >"$1"
}

uncaught=0
try() { # NUMBER TITLE FILE TEST OLD NEW
    local binary=${4%%::*} test=${4##*::} result
    cp "$3" original
    mutate "$3" "$5" "$6"
    result=$(run "$binary" "$test")
    cat original >"$3"
    [[ $result == fails ]] || uncaught=$((uncaught + 1))
    printf '%3s  %-15s  %-14s  %s\n     %s\n' "$1" "$result" "$3" "$2" "$test"
}

wanted() { # NUMBER LIST…
    local number=$1
    shift
    [[ $# == 0 || " $* " == *" $number "* ]]
}

# Without a mutation all must pass, or a failure means nothing.
cargo test --quiet --test laws --test conformance >test.log 2>&1 || { cat test.log; exit 1; }

exec 3<tests/mutations.md
while IFS= read -r line <&3; do
    case $line in
    '## '*) title=${line#*. } number=${line#\#\# } number=${number%%.*} ;;
    '`src/'*) IFS='`' read -r _ file _ test _ <<<"$line" ;;
    '-'*) old=${line#-} ;;
    '+'*) wanted "$number" "$@" && try "$number" "$title" "$file" "$test" "$old" "${line#+}" ;;
    esac
done
echo "not caught: $uncaught"
[[ $uncaught == 0 ]]
