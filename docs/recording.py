#!/usr/bin/env python3
"""Draws docs/recording.svg, the terminal in the README, from a real run.

    docs/recording.py target/dist/throttle

Needs tmux and curl. Types the commands below into a shell in a terminal of tmux, looks at the screen 20 times a second,
and draws each row for the time that it was seen. A small server of its own answers the requests, one of them with 429.
"""
import html, http.server, os, subprocess, sys, tempfile, threading, time

COLUMNS, ROWS = 102, 21
RUN = """throttle -r 2/s -j 1 -k --attempts 5 --done seen -c 'curl -fsS -D "$THROTTLE_REPLY" "$1"' < urls"""
# Each command with the seconds that it is watched, and the seconds after which it is interrupted.
COMMANDS = [("wc -l < urls", 0.7, None), (RUN, 4.5, 3.9), ("wc -l < seen", 0.7, None), (RUN, 4.5, None), ("wc -l < seen", 1, None)]
URLS = "".join(f"http://api.example/{name}\n" for name in ["users", "repos", "issues", "stars", "gists", "teams", "hooks", "forks"])


class Server(http.server.BaseHTTPRequestHandler):
    """Answers one request with 429 and a wait of two seconds."""

    refused = False

    def do_GET(self):
        name = self.path.rsplit("/", 1)[1]
        wait = name == "issues" and not Server.refused
        Server.refused |= wait
        self.send_response(429 if wait else 200)
        if wait:
            self.send_header("Retry-After", "2")
        self.end_headers()
        self.wfile.write(b"" if wait else f"got {name}\n".encode())

    def log_message(self, *_):
        pass


def record(throttle):
    """The screens seen, each with its time in seconds."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    home = folder.name
    open(f"{home}/urls", "w").write(URLS)
    proxy = f"http_proxy=http://127.0.0.1:{server.server_port}"
    path = f"PATH={os.path.dirname(os.path.abspath(throttle))}:{os.environ['PATH']}"
    shell = ["env", "-i", f"HOME={home}", "TERM=screen", "LANG=C.UTF-8", "HISTFILE=", "PS1=$ ", proxy, path, "bash", "--norc", "--noprofile"]

    def tmux(*words):
        return subprocess.run(["tmux", "-L", f"recording-{os.getpid()}", *words], check=True, capture_output=True, text=True).stdout

    tmux("-f", "/dev/null", "new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), "-c", home, *shell)
    try:
        screens, begun = [], time.monotonic()

        def look(seconds):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                screen = tmux("capture-pane", "-p").rstrip("\n").split("\n")
                screens.append((time.monotonic() - begun, screen))
                time.sleep(0.05)

        for command, seconds, interrupt in COMMANDS:
            look(0.5)
            for place in range(0, len(command), 4):
                tmux("send-keys", "-l", "--", command[place:place + 4])
                look(0.05)
            tmux("send-keys", "Enter")
            look(interrupt or seconds)
            if interrupt:
                tmux("send-keys", "C-c")
                look(seconds - interrupt)
        return screens
    finally:
        tmux("kill-server")
        folder.cleanup()


def draw(screens):
    """An SVG that shows each row from when it was seen until it changed, and begins again at the end."""
    total = screens[-1][0] + 3
    rows, shown = [], {}
    for at, screen in screens + [(total, [])]:
        for place in range(ROWS):
            text = screen[place].rstrip() if place < len(screen) else ""
            since, before = shown.get(place, (at, ""))
            if text != before or at == total:
                if before:
                    rows.append((place, before, since, at))
                shown[place] = (at, text)
    width, height = COLUMNS * 8.4 + 24, ROWS * 19 + 22
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}">'
    yield f'<rect width="{width:.0f}" height="{height}" rx="6" fill="#1d1f21"/>'
    yield '<g font-family="ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace" font-size="14" fill="#c5c8c6">'
    for place, text, since, until in rows:
        last = until == total
        times = f"0;{since / total:.4f};{until / total:.4f}".removesuffix(";1.0000")
        values = "hidden;visible" if last else "hidden;visible;hidden"
        colour = ' fill="#8abeb7"' if text.startswith("$ ") else ""
        length = f' textLength="{len(text) * 8.4:.1f}"'
        yield (f'<text x="12" y="{place * 19 + 26}" xml:space="preserve"{colour}{length}'
               f' visibility="{"visible" if last else "hidden"}">{html.escape(text, quote=False)}'
               f'<animate attributeName="visibility" calcMode="discrete" repeatCount="indefinite" dur="{total:.2f}s"'
               f' values="{values}" keyTimes="{times}"/></text>')
    yield "</g></svg>\n"


if __name__ == "__main__":
    picture = "\n".join(draw(record(sys.argv[1])))
    target = os.path.join(os.path.dirname(os.path.abspath(__file__)), "recording.svg")
    open(target, "w").write(picture)
