#!/usr/bin/env bash
# Tries the mutations of mutations.md and mutations_limiters.md, in a copy of the tree: the test that each names must fail.
# usage: tests/mutations.sh [NAME]…    (all of them, or these: 7, A1.2, or D for all of D; about three seconds each)
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
lists=("$root/tests/mutations.md" "$root/tests/mutations_limiters.md")
# Beside what is built anyway, so that dependencies are not built again. All is newer than what was built of an earlier copy.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}"
copy=$CARGO_TARGET_DIR/mutations
rm -rf "$copy"
mkdir -p "$copy"
(cd "$root" && git ls-files -z --cached --others --exclude-standard | tar --null -T - -c) | tar -x -m -C "$copy"
# The failure is what counts here, not the smallest case of it.
export PROPTEST_MAX_SHRINK_ITERS=0 RUST_BACKTRACE=0
cd "$copy"

cargo_test() { # BINARIES AND NAMES OF TESTS…
    cargo test --quiet --config 'profile.dev.package.throttle-cli.debug=0' "$@" >test.log 2>&1
}

# run BINARY TEST: prints 'passes', 'fails' or 'does not build'
run() {
    timeout 120 bash -c "$(declare -f cargo_test); cargo_test \"\$@\"" - --test "$1" -- --exact "$2" || true
    case $(grep '^test result:' test.log) in
    *'ok. 1 passed'*) echo passes ;;
    *'FAILED. 0 passed; 1 failed'*) echo fails ;;
    *) if grep -q 'could not compile' test.log; then echo 'does not build'; else echo 'breaks or hangs'; fi ;;
    esac
}

# mutate FILE: replaces the one place whose lines read "${old[@]}", but for indentation, by "${new[@]}"
mutate() {
    local lines bare at found=-1
    mapfile -t lines <"$1"
    bare=("${lines[@]}")
    for at in "${!bare[@]}"; do bare[at]=${bare[at]#"${bare[at]%%[![:space:]]*}"}; done
    for at in "${!bare[@]}"; do
        [[ ${bare[at]} == "${old[0]}" ]] || continue
        [[ "${bare[*]:at:${#old[@]}}" == "${old[*]}" ]] || continue
        [[ $found == -1 ]] || { echo "$1 has two places that read: ${old[*]}" >&2; return 1; }
        found=$at
    done
    [[ $found != -1 ]] || { echo "$1 has no place that reads: ${old[*]}" >&2; return 1; }
    printf '%s\n' "${lines[@]:0:found}" "${new[@]}" "${lines[@]:found+${#old[@]}}" >"$1"
}

tried=0 uncaught=0
try() { # NAME TITLE FILE TEST, and the arrays old and new
    local result
    cp "$3" original
    mutate "$3"
    # What depends on who comes first may go well once. A test that hangs, or takes the process down, does not pass.
    for _ in 1 2 3; do
        result=$(run "${4%%::*}" "${4##*::}")
        [[ $result == passes ]] || break
    done
    cat original >"$3"
    tried=$((tried + 1))
    [[ $result == fails || $result == 'breaks or hangs' ]] || { uncaught=$((uncaught + 1)) && tail -n 5 test.log; }
    printf '%-7s %-15s  %-28s  %s\n        %s\n' "$1" "$result" "$3" "$2" "$4"
}

wanted() { # NAME LIST…: whether NAME, or the letter or the id it begins with, is in the list, or the list is empty
    local name=$1
    shift
    [[ $# == 0 || " $* " == *" $name "* || " $* " == *" ${name%%.*} "* || " $* " == *" ${name:0:1} "* ]]
}

# Without a mutation all must pass, or a failure means nothing.
mapfile -t named < <(grep -ho '`[a-z_]*::[a-z0-9_]*`' "${lists[@]}" | tr -d '`' | sort -u)
mapfile -t binaries < <(printf '%s\n' "${named[@]%%::*}" | sort -u | sed 's/^/--test=/')
cargo_test "${binaries[@]}" -- --exact "${named[@]##*::}" || { cat test.log; exit 1; }

in_diff=false
while IFS= read -r line <&3; do
    case $in_diff,$line in
    false,'## '*) name=${line#\#\# } title=${name#* } name=${name%% *} name=${name%.} ;;
    false,'`src/'*) IFS='`' read -r _ file _ test _ <<<"$line" ;;
    false,'```diff') in_diff=true old=() new=() ;;
    true,'```')
        in_diff=false
        if wanted "$name" "$@"; then try "$name" "$title" "$file" "$test"; fi
        ;;
    true,' '*) old+=("${line# }") new+=("${line# }") ;;
    true,'-'*) old+=("${line#-}") ;;
    true,'+'*) new+=("${line#+}") ;;
    esac
done 3< <(cat "${lists[@]}")
echo "tried: $tried; not caught: $uncaught"
[[ $uncaught == 0 ]]
