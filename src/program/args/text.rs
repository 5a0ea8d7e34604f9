//! The long texts of the help and the man page.

use crate::program::exit;

pub(super) const USAGE: &str = "\
throttle [OPTIONS] -r LIMIT < input
       throttle [OPTIONS] -r LIMIT [--] COMMAND [ARG]… < input
       throttle [OPTIONS] -r LIMIT -c SCRIPT < input
       throttle [OPTIONS] --bucket BUCKET --once [COMMAND]…";

pub(super) const LONG_ABOUT: &str = "\
Pass lines, records or bytes from standard input to standard output, or run a command for each, at exactly the rate you \
ask for.

Each unit is read as it comes, waits until every limit allows it, and leaves whole and unchanged. Standard output also gets \
blank lines, NUL bytes, invalid UTF-8 and a last line without its newline. For commands, blank lines are skipped and \
counted, except with -0 or -d; a line of spaces or tabs is not blank. After a slow reader or writer, lost time is never made \
up with a burst beyond the limits.

A command's standard input is /dev/null, also with -a; --stdin gives it the unit. A command that fails, that is killed by a \
signal or that cannot be run does not stop the others; one that exits 255 does. A script cannot be run (126) if its first line \
does not name its interpreter, like #!/bin/sh. A command that moves to the background has ended for throttle: setsid CMD \
returns at once, setsid --wait CMD does not.";

/// Command and meaning; the first ones are those of `-h`.
pub(crate) const EXAMPLES: [(&str, &str); 6] = [
    ("cat urls | throttle -r 5/s curl -sSO {}", "a command for each line"),
    ("cat urls | throttle -r 5/s -b 10 > paced", "10 at once, then one every 200 ms"),
    ("throttle -r 10MiB/s < a.tar > /mnt/a.tar", "bytes"),
    ("throttle --bucket api -r 5/s --once ./call", "a rate that all scripts share"),
    ("cat log | throttle -r 100/s -r 1000/min", "both limits kept"),
    ("throttle -r 2/s --repeat 100 ./probe", "a hundred times"),
];

/// What stands in `-h` between the usage and the options.
pub(super) fn after_help() -> String {
    examples(&EXAMPLES[..4])
}

fn examples(of: &[(&str, &str)]) -> String {
    let examples: Vec<String> = of.iter().map(|(command, meaning)| format!("  {command:<44}{meaning}")).collect();
    format!("Examples:\n{}", examples.join("\n"))
}

pub(super) const RATE: &str = "\
Let through at most this; repeat it for several limits at once.

LIMIT is RATE[,burst=N][,initial=N] or RATE,window[,slack=TIME]; then [,per=SEL][,cost=COST][,else=N][,jobs=N].
RATE is COUNT[/[N]UNIT]: 5/s 100/min 3/15s 0.5/s 5k/h 2/500ms 1MiB/s 1.5GB/s, or unlimited.
After the slash: ms, s, min (m), h, d, with or without a whole number before it. \
Before it: k, M, G for a thousand, million, billion, or bytes: B kB MB GB TB, KiB MiB GiB TiB. \
A bare number, or a bare amount of bytes, is per second.

burst=N: most units that may go at once after a pause (see --burst). \
initial=N: how many of them may go at the start; the default is all.

window: never more than COUNT in any PERIOD, as strict servers count. The first COUNT may go at once. \
A unit counts from the time it leaves; in a shared bucket, from the time it was granted. It counts for the PERIOD and slack, \
because units that leave together do not arrive together: PERIOD/20, at most 250ms; slack=0 is exact.

Which limit fits which server: a log or a fixed window takes RATE,window. A token bucket (limit_req of nginx with burst=B) \
takes its rate, and -b one or two less than it lets through at once. A counter that estimates (HAProxy, sliding counters) \
takes 1 % less, without window: 99/10s for 100 in 10 s.

Of several limits the fastest sets the pace; each other one that names no burst is a window. \
So -r 5/s -r 5000/h is up to 5 a second and never more than 5000 in any hour. Limits that differ in per or cost do not count \
as several: of each kind the fastest sets the pace.

per=SEL: the limit holds for each value of SEL by itself. -r 1/s,per=host -r 50/s is at most one a second for each host, and \
50 a second for all together. A run has one SEL. Units without it share one limit. Units of one value keep their order.
SEL host is that of the first URL in the unit, in lower case, without user and port; without a URL it is b.org of a@b.org.
SEL f2 is the second field; blanks separate fields, as in awk.
SEL f2:X is the same, but each byte X separates fields: f2:; or f2:, or, for a tab, f2:\\t.
SEL /user/id is a value in a unit of JSON, a JSON Pointer (RFC 6901); a comma in it is \\,.
SEL re:REGEX is the first group of a regular expression that matches, or else the match; it comes last, since it takes all \
that follows.

jobs=N beside per=SEL: at most N commands for one value at once. unlimited,per=host,jobs=2 limits nothing else.

cost=COST: how much of the limit a unit takes, instead of 1: a number, 800; a field with a whole number in it, f3 or f3:X; a \
value in JSON, /max_tokens; or bytes[/N][+M], its bytes divided by N and rounded up, and M more. 0 passes free. else=N is \
the cost of a unit whose own cannot be read; without it such a unit fails, and ends a pipe. \
-r 500/min -r 200k/min,burst=200k,cost=bytes/4+300 is for an API that counts requests and tokens.";

pub(super) const BURST: &str = "\
Most units that may go at once after a pause, for the limit that sets the pace. With -r 5/s -b 10, ten units go at once, \
then one every 200 ms; after a pause of a second, five may go at once again.

The default is 10 ms' worth of the rate, at least 1.";

pub(super) const BUCKET: &str = "\
Share the limits with every other process that names the same bucket, first come, first served. A NAME (of letters, digits \
and .:-_) is a file in $XDG_STATE_HOME/throttle, or else ~/.local/state/throttle; a word with a slash is the path of a file. \
redis://[USER:PASSWORD@]HOST[:PORT][/DB]/NAME is on a Redis or Valkey server, for any number of machines. In user and \
password write / ? # @ and % as %2F %3F %23 %40 and %25. unix:/SOCKET/NAME is on the server at that socket, like \
unix:/run/redis.sock/llm. ?password-file=PATH after either names a file whose first line is the password; a file that \
everyone can read is refused.

THROTTLE_BUCKET names the bucket of --once, --show, --set, --clear, --pause, --remove, --list and of a stream without -r. A \
stream with -r and without --bucket shares its limits with nobody. Keep a password in a file or in THROTTLE_BUCKET rather than \
on the command line, which everyone can see.

If there is no such bucket yet, it is made with the limits of -r. After that the bucket knows its limits and -r is not \
needed; if -r is given, it must agree with them. A bucket outlives processes and restarts. On a terminal, a long wait \
is announced after a second. If a process that waits is interrupted or killed, those behind it move up; they look once a second.

Each user has their own buckets in files, on one machine; under sudo they are root's; see --group. A network file system is refused. To \
start anew: --remove. A bucket on a server uses the server's clock. The server keeps it under \
the key throttle:NAME for 30 days after the last take. If the server loses its data, one burst and what comes due within \
a second may go twice. rediss: is encrypted, in builds with TLS.";

pub(super) const ONCE: &str = "\
Take one from the bucket, wait for its time, then become COMMAND, with the same standard input and process id. The exit \
code is COMMAND's; without COMMAND it is 0, as for --once && COMMAND. An error of throttle itself exits 125, a refusal by \
--max-wait 75, a command that cannot be run 126, one that is not found 127. If the command does not run or the wait is \
interrupted, the turn is given back.

No unit is read. If the bucket keeps costs, name its limits and write what the call costs as a number: \
--once -r 60/min -r 200k/min,cost=800 COMMAND. Without that it costs what else=N says, and is an error if nothing does.";

pub(super) const ON_STORE_ERROR: &str = "\
What to do while the server of a bucket cannot be reached: wait (the default) tries again, less and less often, says so \
once and lets nothing through meanwhile; fail ends with an error. A server that refuses, for example a wrong password, \
always ends the run. Questions and changes, like --show or --pause, wait 5 s at most. With --once --max-wait TIME no attempt starts after TIME, each gets 3 s for the answer, and the exit \
code is 75.";

pub(super) const DROP: &str = "\
Pass on what conforms, and drop every unit that would wait longer than --max-wait (0 without it), so that a fast writer never \
waits for us: tail -F app.log | throttle -r 10/s,burst=50,per=/service --drop. How many units were dropped is said at most \
every 10 s and at the end.";

pub(super) const MAX_WAIT: &str = "\
With --drop: a unit that would wait longer than TIME is dropped. With --once: if the wait would be longer than TIME (30s, 500ms, 2min), take nothing, say how long it would be, and exit 75. \
0 does not wait at all. A server that does not answer is waited for at most 3 s more, and may have taken one.";

pub(super) const SET: &str = "\
Make the bucket with the limits of -r, or change its limits for everyone from their next take on, and exit. What it has \
saved or counted is kept; -r 5000/h,initial=5000 refills it as well. Processes that wait move up if the new limits allow it; \
none waits longer than before. With --clear everything starts anew.

With -r 60/min -r 200k/min,cost=/max_tokens the bucket keeps what a unit costs, too: a stream that names only the bucket is \
charged by it. A stream ends if that is changed meanwhile.";

pub(super) const GROUP: &str = "\
With --set and a bucket given by its path: members of GROUP, a name or a number, may use its file, too (mode 0660). \
throttle --bucket /var/lib/api/bucket --set --group devs -r 5/s. You must be in the group. A file that replaces it, \
whoever of them makes it, belongs to the group as well. Everyone else is refused.";

pub(super) const CLEAR: &str = "\
Empty the queue of the bucket, lift a pause, and exit. A process that still waits joins the queue again within a second, in \
order; what was reserved for others is free. --clear --set -r LIMIT starts the bucket anew, without what it has saved or \
counted.";

pub(super) const PAUSE: &str = "\
Grant nothing from the bucket for TIME (30s, 10min, 1h) from now on, and exit. The bucket is empty after that. Processes \
that wait already keep their times. A second --pause never shortens the first; --pause 0 lifts it, and so does --clear.";

pub(super) const SHOW: &str = "\
Write the limits of the bucket, what is left of each, how many wait, until when it is paused, how long the next unit would \
wait, where the bucket is, and what happened since it was made: units granted and given back, requests refused, and how long \
grants waited in all. FMT is text or json; in json, times are in ns, and since and paused_until in seconds since 1970.";

pub(super) const LIST: &str = "\
Name the buckets there are, a line each with the limits and how many wait, and exit: those of this user, or with --bucket or \
THROTTLE_BUCKET those beside the bucket that it names, in its folder or on its server. /tmp/ names a folder, \
redis://HOST[:PORT]/[DB/] a server (of a cluster, one node). What is no bucket is left out, and of a damaged one it is said \
what is wrong. FMT is text or json: an object for each, as --show json writes it. Nothing is made or changed.";

pub(super) const REMOVE: &str = "\
Remove the bucket, also a damaged one, and exit. Nothing else is ever removed. A process that still uses it makes it again \
with the limits it knows: a stream at its next take; those who wait within a second, in order, but perhaps for longer than they \
were told. If any wait, standard error says how many. --clear --set -r LIMIT keeps the bucket and starts it anew.";

pub(super) const NULL: &str = "Units end with a NUL byte instead of a newline, as find -print0 writes them.";

pub(super) const DELIMITER: &str = "\
Units end with the byte C instead of a newline: a character, or an escape as in xargs: \\n \\t \\r \\0 \\\\ \\xHH \\OOO.";

pub(super) const BYTES: &str = "\
Count bytes, not lines: every byte is a unit. A rate in bytes, like -r 10MiB/s, implies it.";

pub(super) const ARG_FILE: &str = "\
Read FILE instead of standard input; - is standard input. Commands have /dev/null as theirs in both cases.";

pub(super) const REPEAT: &str = "\
Instead of reading input, make the units 1 to N, or without end. Nothing is appended to COMMAND; {} is the number, and in \
a script \"$1\".";

pub(super) const JOBS: &str = "\
Run at most N commands at once; 0: no cap. The default is 16, since the rate is meant to be the limit: if all slots were \
taken for 10 s, a hint on a terminal says which N the rate needs. A unit asks the limits only when a slot is free, so a \
granted start never waits for a slot.

With -j 1 a command writes to standard output and error directly, and without --timeout it may use the terminal.

Otherwise each command has a process group of its own. If the system stops it because it wants the terminal, throttle \
ends and reports it.

A command has ended when its first process has. Processes that it leaves behind may go on, but their output is read for \
only one more second.";

pub(super) const MAX_ARGS: &str = "\
Give each command N units, or what is left at the end. The rate still counts commands. A word that is just {} becomes N \
words. 0 appends nothing. A command gets fewer units if N do not fit: its units may take 128 KiB, or less if the system allows less. Each unit \
counts 9 bytes more, and again for every {}. With --stdin all fit.";

pub(super) const REPLACE: &str = "\
R stands for the unit in COMMAND, also inside a word; a COMMAND without R is an error. Without -I it is {}.";

pub(super) const SHELL: &str = "\
Run sh -c SCRIPT 'throttle -c' UNIT for each unit. In SCRIPT the unit is \"$1\", and nothing is replaced: put SCRIPT in \
single quotes, or your own shell replaces the $1. A {} in a script that does not use its unit is an error.";

pub(super) const STDIN: &str = "\
Give the unit to the command's standard input instead of its arguments, with its delimiter; with -n N, N of them.";

pub(super) const KEEP_ORDER: &str = "\
Print output in input order. If 10 000 results or 1 GiB of output wait for an earlier command, launching waits. Output \
that waits is kept in an unnamed file in TMPDIR (/tmp), like output beyond 1 MiB of all commands together.";

pub(super) const LINE_BUFFER: &str = "\
Print each line of output as soon as it is complete; lines of different commands mix. A last line without its newline gets one.";

pub(super) const UNGROUP: &str = "Let commands write to standard output and error themselves.";

pub(super) const TAG: &str = "\
Put the unit and a tab before each line of output; of several units the first. A last line without its \
newline gets one. On a terminal, control characters in the unit are shown escaped. If the unit is not an argument \
(--stdin, -n 0), its first 200 bytes are shown.";

pub(super) const TIMEOUT: &str = "\
End a command that takes longer than TIME (30s, 500ms, 2min): TERM to its process group, KILL 5 s later. It counts as \
failed.";

pub(super) const ATTEMPTS: &str = "\
Run a unit up to N times, the first one included. Any failure is tried again, and a signal and a timeout, but not an exit of \
126, 127 or 255, nor an HTTP status from 400 to 499 in the reply, other than 408, 425 and 429. Each attempt takes a grant, so \
the rate holds for all of them together. A unit that waits for another attempt holds no slot; once it is due it goes before \
newer ones. What a command writes to standard output is dropped if its unit is tried again; standard error is printed.

A command may say that the server asked to wait: with an exit of 75, or in the file THROTTLE_REPLY, which takes HTTP header \
fields as curl -D writes them: a status of 429 or 503, a status of 403 with x-ratelimit-remaining: 0 and x-ratelimit-reset, \
or retry-after and a failure. Then nothing starts until the time that the server named (retry-after in seconds, like 2m, or a \
date; else x-ratelimit-reset). If it named none, the pause is two intervals of the rate, at least 50 ms, and doubles until a \
unit succeeds, up to the longest wait of --backoff. With --bucket that holds for everyone who uses the bucket. \
The bucket is empty then, and the unit goes first; it has used up no attempt, so --attempts 1 tries nothing else again.";

pub(super) const BACKOFF: &str = "\
The first and the longest wait before another attempt: waits double. Before attempt k+1 a unit waits between half and all of \
FIRST * 2^(k-1), at most LONGEST. One time alone holds for all waits.";

pub(super) const RETRY_ON: &str = "\
Try again only after these failures: exit codes, timeout, signal, separated by commas.";

pub(super) const MAX_PAUSE: &str = "\
End the run with 75 if a server asks to wait for longer than TIME, counted from the first answer that asks to wait since the \
last success. A pause is never cut short.";

pub(super) const AHEAD: &str = "\
With limits for each key (per=), units are read while others wait, and with --attempts, some wait for another attempt: read \
no more while N of them, or 64 MiB, wait.";

pub(super) const MAX_FAIL: &str = "\
Launch nothing more once N units have failed for good, or N percent of those that have ended (from 20 on). What runs may \
finish; then the exit is 123.";

pub(super) const DONE: &str = "\
Add each unit that succeeded, and whose output was written, to FILE, as it was read. Skip units that are in it, or that were \
read before in this run: a run that was stopped goes on where it was. What counts are a unit's bytes, not its place in the \
input. At least once is promised: what had succeeded in the moment of a crash may run again, at most one unit for each slot \
(--jobs), and with -k those whose output waits for its turn. One process at a time uses FILE.";

pub(super) const LOG: &str = "\
Add a line of JSON to FILE for each attempt that has ended, with these fields: seq (of the command), unit (or unit_base64 if \
it is no UTF-8; units or units_base64 if there are several), cut (whether a unit for --stdin is cut to its beginning), key, try (from 1), start (seconds since 1970), waited and ran (seconds), exit, \
signal, timed_out, http (the reply's status), verdict (ok, again, later, failed, stopped), until (when the next attempt is \
due, in seconds since 1970), charged (by the limits; of several, by the first with cost=), cost (of the reply), slot, error. Fields without a value are null.";

pub(super) const TRACE: &str = "\
Write each command to standard error before it runs, quoted for the shell. On a terminal control characters are written as \
$'\\033', which bash, zsh, ksh and busybox read.";

pub(super) const DRY_RUN: &str = "\
Write what would run, quoted for the shell, and how long after the start; then the total and the most that each \
limit would let through. Without COMMAND, write the beginning of each unit that would leave; bytes are only counted. Runs \
nothing and waits for nothing.";

pub(super) const PROGRESS: &str = "\
Show progress on standard error: auto, always or never.

auto shows a bar once the work has lasted a second, if standard error is a terminal that nothing else uses. So standard \
output must be a file or a device: the reader of a pipe may write to the terminal or ask for a password there. In a pipe, \
standard output must not be the terminal. Commands must not write to the terminal themselves (-u, -j 1 without --tag), and \
units must not be typed in.

No bar is drawn while the terminal does not echo what is typed: then a program asks for a password, or shows pages.

A narrow terminal shows less: first the limit goes, then the rate; the time left stays as long as it fits. It is \
known for a file and for --repeat, and is estimated from whatever holds the work back: the limits, the reader, or the \
commands.

always without a terminal writes a plain line every 10 s. SIGUSR1 writes the same line at any time.";

pub(super) const SUMMARY: &str = "\
At the end, even after an error or a signal, say how many units and bytes passed, how long it took, the mean rate, the time \
spent waiting for each limit, for the input and for the reader, and how late the units left that had to wait.

FMT is text or json; it goes to standard error, or to FILE.";

pub(super) const QUIET: &str = "\
No hints, no bar unless --progress=always asks for it, and in launch mode no messages about failed commands.

Otherwise each line whose command failed, or was stopped by a signal, is reported by its number and its beginning: all of \
them, but on a terminal the first 20. Successes are not reported, except for the totals on a terminal or with --summary.";

/// Variable and meaning.
pub(crate) const ENVIRONMENT: [(&str, &str); 9] = [
    (
        "THROTTLE_BUCKET",
        "The bucket of --once, --show, --set, --clear, --pause, --remove and --list without --bucket, and of a stream without -r \
         and --bucket.",
    ),
    ("THROTTLE_SEQ", "Set for each command: its number, from 1."),
    (
        "THROTTLE_SLOT",
        "Set for each command: the number of its slot (see --jobs), from 0; no two commands that run at once have the same.",
    ),
    ("THROTTLE_ATTEMPT", "Set for each command with --attempts: which attempt at its unit this is, from 1."),
    (
        "THROTTLE_REPLY",
        "Set for each command with --attempts or cost=: a file that takes HTTP header fields, as from curl -D. Known are the \
         status line, retry-after, x-ratelimit-remaining and -reset, and ratelimit; and throttle-cost: N, the real cost of \
         the unit, which replaces what it was charged; with limits of several costs throttle-cost: N KIND, with KIND as in \
         cost=KIND. Only the same user in the same PID namespace can open it: \
         under sudo -u, in a container and over ssh, have the shell open it (curl -D - -o FILE URL >> \"$THROTTLE_REPLY\"), or \
         exit 75.",
    ),
    ("THROTTLE_KEY", "Set for each command with per=: the key of its units, which comes from the input."),
    (
        "THROTTLE_ID",
        "Set for each command with --attempts or --done: a hash of its units, the same at every attempt and in every run, for \
         example as an idempotency key.",
    ),
    ("TMPDIR", "The folder for output, and units for --stdin, that are too much for memory; /tmp if not set."),
    ("XDG_STATE_HOME", "The folder of buckets that are named without a path; ~/.local/state if not set."),
];

pub(crate) const SIGNALS: &str = "\
USR1 writes a status line to standard error. INT, QUIT, TERM and HUP end the program at once, after the summary if one was \
asked for. Commands and their process groups get the signal too, and are waited for; a second signal kills them. A \
signal that was ignored at the start stays ignored. If the reader is gone, the program dies of SIGPIPE, as cat does.";

/// Examples, exit codes, signals and environment, for `--help`.
pub(super) fn after_long_help() -> String {
    let entry = |name: String, meaning: &str| format!("  {name}\n          {meaning}");
    let codes: Vec<String> = exit::codes().map(|(code, meaning)| entry(code.to_string(), &meaning)).collect();
    let environment: Vec<String> =
        ENVIRONMENT.iter().map(|(name, meaning)| entry((*name).to_owned(), meaning)).collect();
    let (examples, codes, environment) = (examples(&EXAMPLES), codes.join("\n"), environment.join("\n"));
    format!("{examples}\n\nExit codes:\n{codes}\n\nSignals:\n  {SIGNALS}\n\nEnvironment:\n{environment}")
}
