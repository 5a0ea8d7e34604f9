# Options, their values, and then COMMAND; its own arguments, too, if the package bash-completion is there.

# Of the words in $1, those that complete the value after $2.
_throttle_words() {
    compopt +o default +o bashdefault
    mapfile -t COMPREPLY < <(compgen -P "$2" -W "$1" -- "${value#"$2"}")
    # What bash takes for words of their own stays as it is.
    COMPREPLY=("${COMPREPLY[@]#"$before"}")
}

_throttle_limits() {
    if [[ $value == *,* ]]; then
        _throttle_words "$2" "${value%,*},"
    else
        _throttle_words "$1"
    fi
}

_throttle_files() {
    compopt -o filenames
    local IFS=$'\n'
    COMPREPLY=($(compgen -f -- "$value"))
}

_throttle_buckets() {
    if [[ $value == */* ]]; then
        _throttle_files
    else
        _throttle_words "$(env -u THROTTLE_BUCKET "$1" --list 2>/dev/null | cut -d: -f1)"
    fi
}

# The value of option $2; $1 is the program.
_throttle_value() {
    case $2 in
        -r | --rate) _throttle_limits '1/s 10/s 100/min 5000/h,window 1MiB/s unlimited' 'window burst=10 initial=0 slack=0 per=host jobs=2 fails=3 rates=FILE cost=bytes/4+300 else=100' ;;
        --bucket) _throttle_buckets "$1" ;;
        --show) _throttle_words 'text json' ;;
        --list) _throttle_words 'text json' ;;
        --on-store-error) _throttle_words 'wait fail' ;;
        -a | --arg-file) _throttle_files ;;
        --retry-on) _throttle_words 'timeout signal' ;;
        --done) _throttle_files ;;
        --log) _throttle_files ;;
        --progress) _throttle_words 'auto always never' ;;
        --summary) _throttle_words 'text json' ;;
        --plot) _throttle_files ;;
        *) _throttle_words '' ;;
    esac
}

_throttle() {
    # As typed: bash splits words at = and : too.
    local words=() starts=() before= glued= word i
    for ((i = 1; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        before=
        if [[ $i -gt 1 && ($glued || $word == [=:]*) ]]; then
            before=${words[-1]}
            words[${#words[@]} - 1]+=$word
        else
            words+=("$word")
            starts+=("$i")
        fi
        glued=
        if [[ $word == *[=:] ]]; then
            glued=yes
            before=${words[-1]}
        fi
    done

    local last=$((${#words[@]} - 1)) value=${words[-1]} command=
    for ((i = 0; i < last; i++)); do
        word=${words[i]}
        case $word in
            --) command=yes ;;
            --rate | --burst | --bucket | --key | --max-wait | --group | --show | --pause | --list | --on-store-error | --delimiter | --arg-file | --repeat | --ahead | --jobs | --max-procs | --max-args | --replace | --shell | --timeout | --attempts | --backoff | --retry-on | --later-on | --max-pause | --stop-after | --max-fail | --done | --log | --progress | --size | --plot) ((i++)) ;;
            --*) ;;
            -*) [[ $word =~ ^-[0kutqhV]*[rbdajPnIc]$ ]] && ((i++)) ;;
            *)
                command=yes
                ((i--))
                ;;
        esac
        if [[ $command ]]; then
            ((i++))
            break
        fi
    done

    COMPREPLY=()
    if ((i > last)); then
        [[ $word == --* ]] || word=-${word: -1}
        _throttle_value "$1" "$word"
    elif [[ ! $command && $value != -* && $last -gt 0 && ${words[last - 1]} == --help ]]; then
        _throttle_words 'limits attempts buckets progress log summary'
    elif [[ $command || $value != -* ]]; then
        if declare -F _comp_command_offset >/dev/null; then
            _comp_command_offset "${starts[i]}"
        elif declare -F _command_offset >/dev/null; then
            _command_offset "${starts[i]}"
        elif [[ $i -eq $last && $value != */* ]]; then
            COMPREPLY=($(compgen -c -- "$value"))
        fi
    elif [[ $value == --*=* ]]; then
        word=${value%%=*}
        value=${value#*=}
        before=${before#*=}
        _throttle_value "$1" "$word"
    else
        _throttle_words '--rate --burst --drop --bucket --once --key --max-wait --set --group --show --clear --pause --list --remove --on-store-error --null --delimiter --bytes --arg-file --repeat --ahead --jobs --max-args --replace --columns --shell --stdin --keep-order --line-buffer --ungroup --tag --timeout --attempts --backoff --retry-on --later-on --max-pause --no-learn --stop-after --max-fail --done --log --trace --dry-run --progress --size --summary --plot --quiet --help --version'
    fi
}

complete -o bashdefault -o default -F _throttle throttle
