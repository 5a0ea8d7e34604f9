complete -c throttle -s r -l rate -d 'At most this: 5/s, 100/min, 10MiB/s; repeat for several' -r
complete -c throttle -s b -l burst -d 'Most that go at once after rest [default: 10 ms of rate]' -r
complete -c throttle -s d -l delimiter -d 'Units end with the byte C' -r
complete -c throttle -s a -l arg-file -d 'Read FILE instead of standard input' -r -F
complete -c throttle -l progress -d 'Show progress: auto, always, never' -r -f -a "auto\t'On a terminal, where it spoils nothing, once the work has lasted a second'
always\t'Always; without a terminal a plain line every 10 s'
never\t'Never'"
complete -c throttle -l summary -d 'Say at the end what happened: text or json' -r
complete -c throttle -s 0 -l null -d 'Units end with NUL instead of a newline'
complete -c throttle -l bytes -d 'Every byte is a unit (implied by a rate in bytes)'
complete -c throttle -s q -l quiet -d 'No hints'
complete -c throttle -s h -l help -d 'Print help (see more with \'--help\')'
complete -c throttle -s V -l version -d 'Print version'
