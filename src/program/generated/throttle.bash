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
        @CASES@
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
            @TAKERS@) ((i++)) ;;
            --*) ;;
            -*) [[ $word =~ ^-[@FLAGS@]*[@LETTERS@]$ ]] && ((i++)) ;;
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
        _throttle_words '@CHAPTERS@'
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
        _throttle_words '@OPTIONS@'
    fi
}

complete -o bashdefault -o default -F _throttle throttle
