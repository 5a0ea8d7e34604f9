complete -c throttle -s r -l rate -d 'At most this: 5/s, 100/min, 10MiB/s; repeat for several' -r
complete -c throttle -s b -l burst -d 'Most at once after a pause [default: 10 ms of rate]' -r
complete -c throttle -l bucket -d 'Limits shared with all that name it: file or redis://' -r -F
complete -c throttle -l max-wait -d 'Exit 75 instead of waiting longer' -r
complete -c throttle -l show -d 'Show the bucket: text or json' -r
complete -c throttle -l pause -d 'Grant nothing from the bucket for TIME' -r
complete -c throttle -l list -d 'Name the buckets there are: text or json' -r
complete -c throttle -l on-store-error -d 'While the bucket\'s server is away: wait, fail [default: wait]' -r -f -a "wait\t'Go on trying'
fail\t'End'"
complete -c throttle -s d -l delimiter -d 'Units end with the byte C' -r
complete -c throttle -s a -l arg-file -d 'Read FILE instead of standard input' -r -F
complete -c throttle -l repeat -d 'Instead of input, the units 1 to N, or without end' -r
complete -c throttle -s j -l jobs -d 'Commands at once; 0: no cap [default: 16] (also -P)' -r
complete -c throttle -s n -l max-args -d 'Units for each command, if they fit [default: 1]' -r
complete -c throttle -s I -l replace -d 'What stands for the unit in COMMAND [default: {}]' -r
complete -c throttle -s c -l shell -d 'Run a shell script for each unit, which is "$1" there' -r
complete -c throttle -l timeout -d 'End a command that takes longer' -r
complete -c throttle -l attempts -d 'Run a unit up to N times if it fails' -r
complete -c throttle -l backoff -d 'Waits between attempts [default: 1s..60s]' -r
complete -c throttle -l retry-on -d 'Which failures are tried again: 6,7,28,timeout,signal' -r
complete -c throttle -l max-pause -d 'The longest pause that a server may ask for [default: 1h]' -r
complete -c throttle -l ahead -d 'Most units that wait for another attempt [default: 10000]' -r
complete -c throttle -l max-fail -d 'Launch nothing more once N units, or N%, have failed' -r
complete -c throttle -l done -d 'Keep units that succeeded in FILE, and skip those in it' -r -F
complete -c throttle -l log -d 'Add a line of JSON to FILE for each attempt' -r -F
complete -c throttle -l progress -d 'Show progress: auto, always, never' -r -f -a "auto\t'On a terminal, if it disturbs nothing, once the work has lasted a second'
always\t'Always; without a terminal a plain line every 10 s'
never\t'Never'"
complete -c throttle -l summary -d 'Say at the end what happened: text or json' -r
complete -c throttle -l once -d 'Take one, then become COMMAND'
complete -c throttle -l set -d 'Make the bucket, or change its limits for everyone'
complete -c throttle -l clear -d 'Empty the bucket\'s queue'
complete -c throttle -l remove -d 'Remove the bucket'
complete -c throttle -s 0 -l null -d 'Units end with NUL instead of a newline'
complete -c throttle -l bytes -d 'Every byte is a unit (implied by a rate in bytes)'
complete -c throttle -l stdin -d 'The unit goes to the command\'s standard input'
complete -c throttle -s k -l keep-order -d 'Print output in input order'
complete -c throttle -l line-buffer -d 'Print output line by line'
complete -c throttle -s u -l ungroup -d 'Let commands write directly, mixed'
complete -c throttle -l tag -d 'The unit and a tab before each line of output'
complete -c throttle -s t -l trace -d 'Write each command to standard error before it runs'
complete -c throttle -l dry-run -d 'Show what would run or leave, and when; do neither'
complete -c throttle -s q -l quiet -d 'No hints, no messages about failed commands'
complete -c throttle -s h -l help -d 'Print help (see more with \'--help\')'
complete -c throttle -s V -l version -d 'Print version'
