# The words of COMMAND before the cursor; fails if it has not begun.
function __throttle_command
    set -l words (commandline -opc)
    set -e words[1]
    while set -q words[1]
        switch $words[1]
            case --
                set -q words[2]; and string escape -- $words[2..]
                return 0
            case --rate --burst --bucket --key --max-wait --group --show --pause --list --on-store-error --delimiter --arg-file --repeat --ahead --jobs --max-procs --max-args --replace --shell --timeout --attempts --backoff --retry-on --later-on --max-pause --stop-after --max-fail --done --log --progress --size --plot
                set -e words[1]
            case '-*'
                string match -qr -- '^-[0kutqhV]*[rbdajPnIc]$' $words[1]; and set -e words[1]
            case '*'
                break
        end
        set -e words[1]
    end
    set -q words[1]; and string escape -- $words
end

function __throttle_complete_command
    set -l words (__throttle_command)
    or not string match -q -- '-*' (commandline -ct); and not __fish_prev_arg_in --help
    or return
    complete --do-complete=(string join ' ' -- $words (commandline -ct))
end

function __throttle_buckets
    env -u THROTTLE_BUCKET throttle --list 2>/dev/null | string replace -r '(.*?): (.*)' '$1\t$2'
end

function __throttle_limits
    set -l limit (commandline -ct | string replace -r '^(--rate=|-[0kutqhV]*r)' '')
    if set -l before (string match -r '.*,' -- $limit)
        string join \n $before(string split ' ' 'window burst=10 initial=0 slack=0 per=host jobs=2 fails=3 rates=FILE cost=bytes/4+300 else=100')
    else
        string split ' ' '1/s 10/s 100/min 5000/h,window 1MiB/s unlimited'
    end
end

complete -c throttle -f -a '(__throttle_complete_command)'
complete -c throttle -f -n '__fish_prev_arg_in --help; and not __throttle_command' -a 'limits attempts buckets progress log summary'
complete -c throttle -n 'not __throttle_command' -s r -l rate -a '(__throttle_limits)' -d 'The limit: 5/s, 100/min, 10MiB/s; repeat for several' -r -f
complete -c throttle -n 'not __throttle_command' -s b -l burst -d 'Units at once after a pause [default: 10 ms of rate]' -r -f
complete -c throttle -n 'not __throttle_command' -l bucket -a '(__throttle_buckets)' -d 'Limits that processes share: a file, or redis://' -r -F
complete -c throttle -n 'not __throttle_command' -l key -d 'With --once, --clear, --pause: for this key' -r -f
complete -c throttle -n 'not __throttle_command' -l max-wait -d 'Instead of a longer wait: exit 75, or drop with --drop' -r -f
complete -c throttle -n 'not __throttle_command' -l group -d 'With --set: members of GROUP may use the bucket\'s file' -r -f
complete -c throttle -n 'not __throttle_command' -l show -d 'Show the bucket: text or json' -r -f -a "text\t''
json\t''"
complete -c throttle -n 'not __throttle_command' -l pause -d 'Grant nothing from the bucket for TIME; 0 lifts a pause' -r -f
complete -c throttle -n 'not __throttle_command' -l list -d 'List the buckets: text or json' -r -f -a "text\t''
json\t''"
complete -c throttle -n 'not __throttle_command' -l on-store-error -d 'If the bucket\'s server is away: wait, fail [default: wait]' -r -f -a "wait\t'Retry until the server answers'
fail\t'End with an error'"
complete -c throttle -n 'not __throttle_command' -s d -l delimiter -d 'Units end with the byte C' -r -f
complete -c throttle -n 'not __throttle_command' -s a -l arg-file -d 'Read FILE instead of standard input' -r -F
complete -c throttle -n 'not __throttle_command' -l repeat -d 'Read no input: the units are 1 to N, or have no end' -r -f
complete -c throttle -n 'not __throttle_command' -l ahead -d 'Most units read while others wait [default: 10000]' -r -f
complete -c throttle -n 'not __throttle_command' -s j -l jobs -d 'Commands at once; 0: no cap [default: 16] (also -P)' -r -f
complete -c throttle -n 'not __throttle_command' -s n -l max-args -d 'Units for each command, if they fit [default: 1]' -r -f
complete -c throttle -n 'not __throttle_command' -s I -l replace -d 'The placeholder of the unit in COMMAND [default: {}]' -r -f
complete -c throttle -n 'not __throttle_command' -l columns -d 'Columns of the unit are {1}, {2}, … in COMMAND' -r -f
complete -c throttle -n 'not __throttle_command' -s c -l shell -d 'Run a shell script for each unit; the unit is "$1"' -r -f
complete -c throttle -n 'not __throttle_command' -l timeout -d 'End a command that takes longer than TIME' -r -f
complete -c throttle -n 'not __throttle_command' -l attempts -d 'Run a unit up to N times if it fails' -r -f
complete -c throttle -n 'not __throttle_command' -l backoff -d 'Waits between attempts [default: 1s..60s]' -r -f
complete -c throttle -n 'not __throttle_command' -l retry-on -d 'Failures to try again: 6,7,28,timeout,signal' -r -f -a "timeout\t''
signal\t''"
complete -c throttle -n 'not __throttle_command' -l later-on -d 'Further answers that request a wait: 254,http:403' -r -f
complete -c throttle -n 'not __throttle_command' -l max-pause -d 'The longest pause that a server may request [default: 1h]' -r -f
complete -c throttle -n 'not __throttle_command' -l stop-after -d 'Start nothing more after TIME; running commands finish' -r -f
complete -c throttle -n 'not __throttle_command' -l max-fail -d 'Launch nothing more once N units, or N%, have failed' -r -f
complete -c throttle -n 'not __throttle_command' -l done -d 'Add units that succeed to FILE; skip units in FILE' -r -F
complete -c throttle -n 'not __throttle_command' -l log -d 'Add a line of JSON to FILE for each attempt' -r -F
complete -c throttle -n 'not __throttle_command' -l progress -d 'Show progress: auto, always, never' -r -f -a "auto\t'On a terminal, if it disturbs nothing, once the work has lasted a second'
always\t'Always; without a terminal a plain line every 10 s'
never\t'Never'"
complete -c throttle -n 'not __throttle_command' -l size -d 'Size of the input of a pipe: 10GiB, or units' -r -f
complete -c throttle -n 'not __throttle_command' -l summary -d 'Report at the end: text or json' -r -f -a "text\t''
json\t''"
complete -c throttle -n 'not __throttle_command' -l plot -d 'Write a page of HTML about runs, from files of --log' -r -F
complete -c throttle -n 'not __throttle_command' -l drop -d 'Drop units that would wait, instead of passing them on late'
complete -c throttle -n 'not __throttle_command' -l once -d 'Take one unit, then become COMMAND'
complete -c throttle -n 'not __throttle_command' -l set -d 'Make the bucket, or change its limits for everyone'
complete -c throttle -n 'not __throttle_command' -l clear -d 'Empty the bucket\'s queue, and lift a pause'
complete -c throttle -n 'not __throttle_command' -l remove -d 'Remove the bucket'
complete -c throttle -n 'not __throttle_command' -s 0 -l null -d 'Units end with NUL instead of a newline'
complete -c throttle -n 'not __throttle_command' -l bytes -d 'Every byte is a unit (implied by a rate in bytes)'
complete -c throttle -n 'not __throttle_command' -l stdin -d 'Give the unit to the command\'s standard input'
complete -c throttle -n 'not __throttle_command' -s k -l keep-order -d 'Print output, or pass units on, in input order'
complete -c throttle -n 'not __throttle_command' -l line-buffer -d 'Print output line by line'
complete -c throttle -n 'not __throttle_command' -s u -l ungroup -d 'Let commands write their output directly, mixed'
complete -c throttle -n 'not __throttle_command' -l tag -d 'Put the unit and a tab before each line of output'
complete -c throttle -n 'not __throttle_command' -l no-learn -d 'Do not slow down if the server allows less than the rate'
complete -c throttle -n 'not __throttle_command' -s t -l trace -d 'Write each command to standard error before it runs'
complete -c throttle -n 'not __throttle_command' -l dry-run -d 'Show what would run or leave, and when; run nothing'
complete -c throttle -n 'not __throttle_command' -s q -l quiet -d 'No hints, no messages about failed commands'
complete -c throttle -n 'not __throttle_command' -s h -l help -d 'Print help (see more with \'--help\')'
complete -c throttle -n 'not __throttle_command' -s V -l version -d 'Print version'
