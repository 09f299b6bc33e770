"""Kafka's own command line tools from Python: one JVM that runs many (java/ToolServer.java), or one JVM of its own for a tool."""
import json
import os
import pathlib
import selectors
import subprocess
import sys
import threading
import time

from clientlib import Failed, check

# Tools live for a second or two: what makes a JVM start quickly matters more than what makes it run fast.
QUICK = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx512m"]


def cache_dir():
    """Where `install` put things: the same rule as in that script."""
    if os.environ.get("KAAS_TEST_CLIENTS_DIR"):
        return pathlib.Path(os.environ["KAAS_TEST_CLIENTS_DIR"])
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.environ.get("HOME", "/root"), ".cache")
    return pathlib.Path(base) / "kaas-test-clients"


def class_path(kafka):
    home = cache_dir() / kafka
    if not (home / "libs").is_dir():
        sys.exit(f"{kafka} is not installed: run ./test (or broker/tests/clients/install --only {kafka})")
    return f"{home / 'classes'}:{home / 'libs'}/*"


class ToolFailed(Failed):
    pass


class Tools:
    """Runs tools one after the other in one JVM; the first call pays for its start."""

    def __init__(self, kafka):
        self.kafka = kafka
        self.process = subprocess.Popen(["java", *QUICK, "-cp", class_path(kafka), "ToolServer"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def run(self, tool, *arguments, stdin="", timeout_s=40):
        """(exit code, standard output, standard error) of one tool."""
        request = {"tool": tool, "args": [str(a) for a in arguments], "stdin": stdin, "timeout_s": timeout_s}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        # The server keeps the tool's time; this is for a JVM that hangs.
        timer = threading.Timer(timeout_s + 20, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        check(line, f"{tool}: the JVM ended without an answer")
        answer = json.loads(line)
        return answer["exit"], answer["out"], answer["err"]

    def ok(self, tool, *arguments, **more):
        """The standard output of a tool that must succeed."""
        code, out, err = self.run(tool, *arguments, **more)
        if code != 0:
            raise ToolFailed(f"{self.kafka}: {tool} {' '.join(map(str, arguments))} ended with {code}: {out[-600:]} {err[-900:]}")
        return out

    def alone(self, main_class, *arguments, timeout_s=60):
        """Standard output of a tool in a JVM of its own: for those that do their last work in the JVM's own shutdown hooks."""
        command = ["java", *QUICK, "-cp", class_path(self.kafka), main_class, *map(str, arguments)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s)
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if done.returncode != 0:
            raise ToolFailed(f"{self.kafka}: {main_class} {' '.join(map(str, arguments))} ended with {done.returncode}: {out[-600:]} {err[-900:]}")
        return out

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)


class OwnProcess:
    """A tool in a JVM of its own, whose lines of JSON are read as they come (the verifiable producer and consumer)."""

    def __init__(self, kafka, main_class, *arguments):
        self.command = main_class
        self.events, self.noise, self.buffer = [], "", b""
        self.process = subprocess.Popen(["java", *QUICK, "-cp", class_path(kafka), main_class, *map(str, arguments)],
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)

    def step(self):
        """Reads what is there, for at most 50 ms."""
        if self.selector.select(0.05):
            self.buffer += self.process.stdout.read() or b""
        *lines, self.buffer = self.buffer.split(b"\n")
        new = []
        for line in lines:
            try:
                new.append(json.loads(line))
            except ValueError:
                self.noise += line.decode(errors="replace") + "\n"
        self.events += new
        return new

    def named(self, name):
        return [e for e in self.events if e.get("name") == name]

    def terminate(self, timeout_s=30):
        """SIGTERM, as an operator would; what it still prints is kept."""
        self.process.terminate()
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                self.process.kill()
                raise Failed(f"{self.command} did not end: {self.noise[-600:]}")
            self.step()
        self.step()

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
