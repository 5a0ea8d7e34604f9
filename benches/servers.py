#!/usr/bin/env python3
"""How servers judge the requests that throttle starts, and how streams share a bucket.

    benches/servers.py target/dist/throttle [REDIS_PORT]

Needs curl; takes the Python package `limits`, haproxy and a Redis on REDIS_PORT where there are. About four minutes.
Prints the tables of docs/measurements.md (Servers that count, Shares of one bucket).
"""
import os, shutil, socket, subprocess, sys, tempfile, threading, time

BINARY = os.path.abspath(sys.argv[1])
REDIS = sys.argv[2] if len(sys.argv) > 2 else None
FOLDER = tempfile.mkdtemp()
try:
    from limits import parse, storage, strategies
except ImportError:
    strategies = None


def buckets(name):
    yield "file", os.path.join(FOLDER, name)
    if REDIS:
        yield "Redis", f"redis://127.0.0.1:{REDIS}/{name}-{os.getpid()}"


class Log:
    """Answers every request with 200, and notes when it came."""

    def __init__(self):
        self.times, self.socket = [], socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            connection, _ = self.socket.accept()
            self.times.append(time.monotonic())
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    @staticmethod
    def answer(connection):
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        connection.close()


def call(port, units, *args):
    curl = ["curl", "-q", "-s", "-o", "/dev/null", "-w", "%{http_code}\\n", f"http://127.0.0.1:{port}/"]
    command = [BINARY, "-q", "-j", "16", "-n", "1", "--repeat", str(units), *args, *curl]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def by_limits(times, limit, kind):
    if not strategies:
        return "-"
    real, refused = time.time, 0
    for offset in (0, 0.25, 0.5, 0.75):
        judge = kind(storage.MemoryStorage())
        for at in times:
            time.time = lambda: 1e9 + at + offset
            refused += not judge.hit(parse(limit), str(offset))
    time.time = real
    return refused


def windows():
    print("| limit | where | strict log | `limits`, moving | `limits`, fixed | used |\n|---|---|---|---|---|---|")
    log = Log()
    for count, seconds, rounds, slack in ((40, 1, 6, ",slack=0"), (40, 1, 6, ""), (100, 10, 3, "")):
        limit = f"{count}/{seconds}s,window{slack}"
        of_server = f"{count}/{seconds} second"
        for where, args in [("process", [])] + [(name, ["--bucket", path]) for name, path in buckets(f"w{count}.{len(slack)}")]:
            log.times.clear()
            call(log.port, count * rounds, "-r", limit, *args)
            times = sorted(log.times)
            strict = sum(b - a < seconds for a, b in zip(times, times[count:]))
            moving, fixed = (
                by_limits(times, of_server, getattr(strategies, kind, None))
                for kind in ("MovingWindowRateLimiter", "FixedWindowRateLimiter")
            )
            used = (rounds - 1) * seconds / (times[(rounds - 1) * count] - times[0])
            print(f"| `{limit}` | {where} | {strict} of {len(times)} | {moving} of {4 * len(times)} | "
                  f"{fixed} of {4 * len(times)} | {100 * used:.1f} % |", flush=True)


def haproxy():
    if not shutil.which("haproxy", path=os.environ["PATH"] + ":/usr/sbin"):
        return
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    config = os.path.join(FOLDER, "haproxy.cfg")
    with open(config, "w") as file:
        file.write(f"defaults\n mode http\n timeout client 5s\n timeout server 5s\n timeout connect 5s\n"
                   f"frontend judge\n bind 127.0.0.1:{port}\n stick-table type ip size 1k expire 60s store http_req_rate(10s)\n"
                   f" http-request track-sc0 src\n http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt 100 }}\n"
                   f" http-request return status 200\n")
    print("\n| limit | HAProxy, 100 in 10 s |\n|---|---|")
    for limit in ("100/10s,window", "99/10s"):
        server = subprocess.Popen(["/usr/sbin/haproxy", "-f", config])
        time.sleep(1)
        answers = call(port, 300, "-r", limit)
        print(f"| `{limit}` | {sum(answer != '200' for answer in answers)} of 300 refused |", flush=True)
        server.kill()


def share(bucket, limit, pipes, loops, seconds):
    subprocess.run([BINARY, "-q", "--bucket", bucket, "--set", "-r", limit], check=True, stdout=subprocess.DEVNULL)
    counts, ends, end = [0] * (pipes + loops), [], time.monotonic() + seconds

    def pipe(place):
        source = subprocess.Popen(["yes"], stdout=subprocess.PIPE)
        sink = subprocess.Popen([BINARY, "-q", "--bucket", bucket], stdin=source.stdout, stdout=subprocess.PIPE)
        source.stdout.close()
        ends.append(sink)
        while read := os.read(sink.stdout.fileno(), 65536):
            if time.monotonic() < end:
                counts[place] += read.count(b"\n")
        source.kill()

    def loop(place):
        while time.monotonic() < end:
            subprocess.run([BINARY, "-q", "--bucket", bucket, "--once", "true"])
            counts[place] += time.monotonic() < end

    threads = [threading.Thread(target=pipe if place < pipes else loop, args=(place,)) for place in range(pipes + loops)]
    for thread in threads:
        thread.start()
    time.sleep(max(0, end - time.monotonic()))
    for sink in ends:
        sink.terminate()
    for thread in threads:
        thread.join()
    return counts


def shares():
    print("\n| limit | streams | where | the least and the most, of a fair share | used |\n|---|---|---|---|---|")
    for limit, due, pipes, loops in (
        ("40/s,window,slack=0", 40, 4, 0), ("100/2s,window,slack=0", 50, 4, 0), ("40/s,window,slack=0", 40, 3, 1), ("40/s", 40, 3, 1), ("20000/s", 20000, 16, 0)
    ):
        for where, bucket in buckets(f"s{due}-{loops}-{len(limit)}"):
            counts = share(bucket, limit, pipes, loops, 20)
            fair = sum(counts) / len(counts)
            streams = f"{pipes} pipes" + (f", {loops} loop of `--once`" if loops else "")
            print(f"| `{limit}` | {streams} | {where} | {100 * min(counts) / fair:.0f} %, {100 * max(counts) / fair:.0f} % | "
                  f"{sum(counts) / due / 20 * 100:.1f} % |", flush=True)


windows()
haproxy()
shares()
shutil.rmtree(FOLDER)
