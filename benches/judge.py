#!/usr/bin/env python3
"""Real runs beside a model of the rules, in exact fractions: `judge_model.py`, with the cases of
`judge_cases.py`.

    benches/judge.py target/dist/throttle [--cases 200] [--seed N] [--only CASE] [--loaded]

Each case takes random limits and units, and runs them as a pipe or as commands; with limits of its own, with a bucket in a
file, or with one on a Redis server (left out if there is none); in one process or in several that share the bucket. The
model knows when the units came, and computes when each is granted. `--only` runs one case of a seed and shows it.

In one process: no unit leaves before the time of the model (0.2 ms are left for clocks), none more than 5 ms after it, the
order is that of the model, and the bytes are those of the input. There are two models. The early one takes what can only have
happened later: units came before they were written, a window counts from the grant, and with `initial=` the buckets were made
when the process was started. The late one takes what can only have happened before: units came when they had been written, a
window counts from the time at which the unit was seen, with `initial=` the first unit was in time, and a unit asks the limits
of all when it conforms to those of its key, and the one before it has left: what it costs beyond the burst is paid from then
on. A command's time is the first thing that it notes, by the same clock. A start takes time, and commands that are granted
together start one after another, so each is given the time that it and those before it need.

In several processes the order is open. No limit is exceeded by what left since the first unit came, nor in any time (5 ms
are left for late wake-ups); at most `jobs` commands run at once; and the last unit leaves within 5 ms and 3 % of the model's
time. The order decides how well several limits are used, so that is the longest of several orders; or each unit leaves within 5 ms
of its time in the order in which they left, and that is one that the rules allow (`is_in_time`). With `jobs=` the time is
not judged: nothing says how soon another process learns that a command has ended. One process that uses a bucket has 5 ms
more for that.

A case that is late, exceeds a limit because one was late, or has another order, is repeated up to three times, because the
machine may be shared. `--loaded` is for a machine that does other things at the same time: it judges only what no delay
excuses, and its cases are short.
"""
import argparse, collections, contextlib, os, random, selectors, shutil, socket, statistics, subprocess, sys, tempfile, time
from fractions import Fraction

sys.dont_write_bytecode = True
from judge_cases import any_case
from judge_model import LATE, MS, Fair, Model, follow, simulate

CLOCKS, READY, REPEATS = MS // 5, 100 * MS, 3
COMMAND = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static void say(char what, const char *unit) {
    char line[256]; struct timespec now; clock_gettime(CLOCK_MONOTONIC, &now);
    int size = snprintf(line, sizeof line, "%c %lld %.200s\n", what, now.tv_sec * 1000000000LL + now.tv_nsec, unit);
    if (write(1, line, size) != size) _exit(1);
}
int main(int count, char **words) {
    say('s', words[2]);
    if (atoi(words[1])) { usleep(1000 * atoi(words[1])); say('e', words[2]); }
    _exit(0);
}
"""


# The runs.


class Run:
    """Runs a case, and notes what came and left when, in nanoseconds of CLOCK_MONOTONIC."""

    def __init__(self, case, binary, bucket, folder, helper):
        limits = [word for limit in case.limits for word in ("-r", limit.text)]
        args = [binary, "-q"] + (["--bucket", bucket] if bucket else [])
        if case.sets:
            subprocess.run([*args, "--set", *limits], check=True, stdout=subprocess.DEVNULL)
        args += [] if case.sets else limits
        args += ["-t", "-u", "-j", "0", "--", helper, str(case.lasts)] if case.launch else []
        out, inside = os.pipe()
        self.errors = [open(os.path.join(folder, f"errors{process}"), "w+b") for process in range(case.processes)]
        inputs = [os.pipe() for _ in range(case.processes)]
        pieces, self.written, self.seen, self.ended = collections.deque(case.pieces), {}, [], {}
        if case.is_early:
            self.write(inputs, pieces.popleft()[1])
        self.begun = time.monotonic_ns()
        children = [subprocess.Popen(args, stdin=source, stdout=inside, stderr=errors, env=ENVIRONMENT,
                                     preexec_fn=hurry)
                    for (source, _), errors in zip(inputs, self.errors)]
        os.close(inside)
        for source, _ in inputs:
            os.close(source)
        base = self.begun if case.is_early else time.monotonic_ns() + READY
        self.read(out, inputs, pieces, base, children)
        self.codes = [child.wait() for child in children]
        self.order = [self.traced(errors) for errors in self.errors]
        os.close(out)

    def write(self, inputs, units):
        for process, (_, end) in enumerate(inputs):
            mine = [unit for unit in units if unit.process == process]
            before = time.monotonic_ns()
            os.write(end, b"".join(unit.text + b"\n" for unit in mine))
            after = time.monotonic_ns()
            self.written.update((unit.age, (before, after)) for unit in mine)

    def read(self, out, inputs, pieces, base, children):
        """Writes the pieces when they are due, and reads meanwhile."""
        selector, rest, deadline = selectors.DefaultSelector(), b"", time.monotonic_ns() + 20_000 * MS
        selector.register(out, selectors.EVENT_READ)
        self.bytes = b""
        while True:
            while pieces and base + pieces[0][0] <= time.monotonic_ns():
                self.write(inputs, pieces.popleft()[1])
            if not pieces and inputs:
                for _, end in inputs:
                    os.close(end)
                inputs = []
            next_time = base + pieces[0][0] if pieces else deadline
            if selector.select(max(0, next_time - time.monotonic_ns()) / 1e9):
                read, now = os.read(out, 65536), time.monotonic_ns()
                if not read:
                    return
                *lines, rest = (rest + read).split(b"\n")
                self.seen += [(now, line) for line in lines]
                self.bytes += read
            elif not pieces and time.monotonic_ns() >= deadline:
                for child in children:
                    child.kill()

    @staticmethod
    def traced(errors):
        """The units in the order in which their commands were started."""
        errors.seek(0)
        lines = errors.read().splitlines()
        errors.close()
        return lines


# The judge.


class Verdict:
    """`wrong`: what no delay excuses. `late`: what one may excuse. Times are in ns."""

    def __init__(self):
        self.wrong, self.late = [], []
        self.lateness = self.excess = self.choices = self.open_choices = 0
        # The time of the model by that of the run.
        self.used = 1


def departures(case, run, verdict):
    """When each unit left, by age, in the order in which they left."""
    by_text, left = {unit.text: unit.age for unit in case.units}, {}
    running = collections.Counter()
    jobs = next((limit for limit in case.limits if limit.jobs), None)
    for now, line in run.seen:
        what, text = "s", line
        if case.launch:
            what, stamp, text = line.split(b" ", 2)
            what, now = what.decode(), int(stamp)
        age = by_text.get(text)
        if age is None or (what == "s") == (age in left):
            verdict.wrong.append(f"this is not what came in: {line!r}")
        elif what == "s":
            left[age] = now
        else:
            run.ended[age] = now
        if jobs and age is not None:
            key = case.units[age].key if jobs.per else None
            running[key] += 1 if what == "s" else -1
            if running[key] > jobs.jobs:
                verdict.wrong.append(f"{running[key]} commands at once: {text!r}")
    if any(run.codes) or len(left) != len(case.units):
        verdict.wrong.append(f"{len(left)} of {len(case.units)} units left, exit codes {run.codes}: {run.order}")
    return left


def counted(case, left):
    """Each limit, for each key if it has keys: when the units left that it counts, and what they cost, in order."""
    for limit in case.limits:
        for key in {unit.key for unit in case.units} if limit.per else [None]:
            yield limit, sorted((left[unit.age], unit.of(limit)) for unit in case.units if key in (None, unit.key))


def time_for(limit, used, largest):
    """The least time in which so much may leave, at these costs."""
    if limit.rate:
        return (used - max(limit.burst, largest)) / limit.rate
    return limit.period if limit.count and used > limit.count else 0


def excess(case, left):
    """By how much time a unit left too soon after others, at any limit."""
    most = 0
    for limit, line in counted(case, left):
        for first in range(len(line)):
            used = largest = 0
            for at, cost in line[first:]:
                used, largest = used + cost, max(largest, cost)
                if cost:
                    most = max(most, time_for(limit, used, largest) - (at - line[first][0]))
    return most


def judge_order(case, run, left, start_cost, verdict):
    """One process: the time and the place of each unit."""
    units, ages = {unit.age: unit for unit in case.units}, list(left)
    if case.launch:
        by_text = {unit.text.decode(): unit.age for unit in case.units}
        ages = [by_text[line.decode().split("'")[1]] for line in run.order[0] if b"'" in line]
        if sorted(ages) != sorted(left):
            return verdict.wrong.append(f"the commands that were traced are not those that ran: {run.order[0]}")
    elif len({unit.key for unit in case.units}) == 1 and run.bytes != b"".join(unit.text + b"\n" for unit in case.units):
        verdict.wrong.append("the bytes are not those that came in")
    shared = case.where != "private"
    before = {age: run.written[age][0] for age in ages}
    after = {age: run.written[age][1] for age in ages}
    started = run.begun
    if case.is_early:
        before.update((unit.age, run.begun) for unit in case.pieces[0][1])
        first = Model(case.limits, case.units, before, run.begun).grant(units[ages[0]])
        started = max(run.begun, left[ages[0]] - (first - run.begun))
        after = {age: max(time, started) for age, time in after.items()}
    early = Model(case.limits, case.units, before, run.begun)
    late, worlds, times, is_right = Model(case.limits, case.units, after, started, True), [Fair()], [], True
    for place, age in enumerate(ages):
        unit, end = units[age], run.ended.get(age)
        choices = sum(own < left[age] - LATE for own, _ in late.heads())
        verdict.choices += choices > 1
        verdict.open_choices += len(worlds) > 1
        least = early.grant(unit, None, end)
        fits, granted, worlds = follow(late, worlds, unit, None if shared else left[age], end)
        times.append(granted)
        if OPTIONS.only is not None:
            print(units[age].text, *(f"{float(time - run.begun) / MS:.2f}" for time in (before[age], least, granted, left[age])))
        together = sum(granted - time < LATE for time in times) * start_cost if case.launch else 0
        together += LATE if shared and case.lasts else 0
        lateness = left[age] - granted - together
        verdict.lateness = max(verdict.lateness, lateness)
        if left[age] < least - CLOCKS:
            verdict.wrong.append(f"early by {float(least - left[age]) / MS:.2f} ms: unit {age} at place {place}")
        if lateness > LATE:
            verdict.late.append(f"late by {float(lateness) / MS:.1f} ms: unit {age} at place {place}")
        if is_right and not fits:
            is_right = False
            verdict.late.append(f"not its turn: unit {age} at place {place}")
    end = early.last if not case.is_early else late.last
    verdict.used = (end - min(before.values())) / max(1, max(left.values()) - min(before.values()))


def is_in_time(case, came, left):
    """Several processes: whether each unit left at its time in the order in which they left, and that order is one that the
    rules allow. Which process goes first is open; each keeps the order of a key, and nobody waits for a unit that does not
    conform to the limits of its key while another may go."""
    model, queues = Model(case.limits, case.units, came, min(came.values()), True), collections.defaultdict(collections.deque)
    for unit in case.units:
        queues[unit.process, unit.key].append(unit)
    for unit in sorted(case.units, key=lambda unit: left[unit.age]):
        heads = [line[0] for line in queues.values() if line]
        own, least = model.own(unit), min(max(model.own(head), model.conforms(head)) for head in heads)
        if unit not in heads or own > least + LATE or left[unit.age] > model.grant(unit) + LATE:
            return False
        queues[unit.process, unit.key].popleft()
    return True


def judge_total(case, run, left, verdict):
    """Several processes: nothing is exceeded, and all is used."""
    written = came = {age: before for age, (before, _) in run.written.items()}
    start = min(came.values())
    for limit, line in counted(case, left):
        used = largest = 0
        for at, cost in line:
            used, largest = used + cost, max(largest, cost)
            early = start + time_for(limit, used, largest) - CLOCKS - at
            if cost and early > 0:
                verdict.wrong.append(f"{limit.text} is over by {float(early) / MS:.2f} ms")
    if verdict.excess > LATE:
        verdict.late.append(f"a limit is over by {float(verdict.excess) / MS:.1f} ms")
    lasts, rng, longest = case.lasts * MS, random.Random(1), 0
    for _ in range(5):
        longest = max(longest, max(simulate(case.limits, case.units, came, start, lasts).values()) - start)
        # Another order of those that came together.
        came = {age: time + rng.randint(0, MS) for age, time in came.items()}
    total = max(left.values()) - start
    if case.lasts:
        return
    verdict.used, verdict.lateness = longest / total, max(0, total - longest)
    if total > longest * Fraction(103, 100) + LATE and not is_in_time(case, written, left):
        verdict.late.append(f"{total / MS:.0f} ms instead of {float(longest) / MS:.0f}")


def judge(case, run, start_cost):
    verdict = Verdict()
    left = departures(case, run, verdict)
    if not verdict.wrong:
        verdict.excess = excess(case, left)
        if case.processes == 1:
            judge_order(case, run, left, start_cost, verdict)
        else:
            judge_total(case, run, left, verdict)
    return verdict


# The program.


def redis_server(folder):
    if not shutil.which("redis-server"):
        print("no redis-server here: no buckets on a server", flush=True)
        return None, None
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    server = subprocess.Popen(["redis-server", "--port", str(port), "--save", "", "--dir", folder], stdout=subprocess.DEVNULL,
                              preexec_fn=hurry)
    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return server, port
        except OSError:
            time.sleep(0.01)
    sys.exit("redis-server does not answer")


def compiled(folder):
    """The command, and how long it takes to start one."""
    helper = os.path.join(folder, "unit")
    for static in (["-static"], []):
        compiler = ["cc", "-O1", *static, "-x", "c", "-o", helper, "-"]
        if subprocess.run(compiler, input=COMMAND.encode(), stderr=subprocess.DEVNULL).returncode == 0:
            break
    times = []
    for _ in range(20):
        begun = time.monotonic_ns()
        subprocess.run([helper, "0", "unit"], stdout=subprocess.DEVNULL)
        times.append(time.monotonic_ns() - begun)
    return helper, statistics.median(times)


def hurry():
    """What is judged goes before other work of this machine, if that is allowed."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -15)


def with_priority(act):
    """The delays of the reader are not those of the program: it goes before all others, if that is allowed."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        return act()
    try:
        return act()
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def row(kind, verdicts):
    tries = [len(verdict) for verdict in verdicts]
    agreed = [not bad(verdict[-1]) for verdict in verdicts]
    last = [verdict[-1] for verdict in verdicts]
    used = [float(verdict.used) for verdict in last]
    print(f"| {kind} | {len(tries)} | {sum(a and t == 1 for a, t in zip(agreed, tries))} | "
          f"{sum(a and t > 1 for a, t in zip(agreed, tries))} | {agreed.count(False)} | "
          f"{float(max(v.lateness for v in last)) / MS:.1f} ms | {100 * min(used):.1f} %, {100 * statistics.median(used):.1f} % | "
          f"{float(max(v.excess for v in last)) / MS:.1f} ms | {sum(v.choices for v in last)}, {sum(v.open_choices for v in last)} |")


def bad(verdict):
    return verdict.wrong + (verdict.late if not OPTIONS.loaded else [])


def main():
    folder = tempfile.mkdtemp()
    server, port = redis_server(folder)
    helper, start_cost = compiled(folder)
    stores, results = ["private", "private", "file"] + ["Redis"] * bool(server), collections.defaultdict(list)
    print(f"seed {OPTIONS.seed}; a command starts within {start_cost / MS:.1f} ms", flush=True)
    failed = False
    for number in range(OPTIONS.cases) if OPTIONS.only is None else [OPTIONS.only]:
        case, verdicts = any_case(random.Random(OPTIONS.seed * 100_003 + number), stores, 7e8 if OPTIONS.loaded else 3e9), []
        while len(verdicts) <= REPEATS and (not verdicts or not verdicts[-1].wrong and bad(verdicts[-1])):
            name = f"case-{number}-{len(verdicts)}"
            bucket = {"private": None, "file": os.path.join(folder, name), "Redis": f"redis://127.0.0.1:{port}/{name}"}
            run = with_priority(lambda: Run(case, OPTIONS.binary, bucket[case.where], folder, helper))
            verdicts.append(judge(case, run, start_cost))
        results[case.kind].append(verdicts)
        if len(verdicts) > 1 and not bad(verdicts[-1]):
            print(f"case {number}, {' '.join(case.kind)}, agreed when repeated; before that: {bad(verdicts[0])[0]}", flush=True)
        failed |= bool(bad(verdicts[-1]))
        if bad(verdicts[-1]) or OPTIONS.only is not None:
            print(f"case {number}: {case.show()}\n  " + "\n  ".join(bad(verdicts[-1])[:8]), flush=True)
    if server:
        server.kill()
    shutil.rmtree(folder)
    print("| | cases | agreed at once | when repeated | not | latest | used: least, median | over | choices, open |")
    print("|---|---|---|---|---|---|---|---|---|")
    for kind, verdicts in sorted(results.items()):
        row(", ".join(kind), verdicts)
    row("all", sum(results.values(), []))
    sys.exit(failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=os.path.abspath)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--only", type=int)
    parser.add_argument("--loaded", action="store_true")
    OPTIONS = parser.parse_args()
    ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("THROTTLE")}
    main()
