#!/usr/bin/env python3
"""Runs one real Apache Kafka 4 broker (KRaft, combined mode, loopback only) from the class path that
broker/tests/clients/install resolved: the reference that client programs and measurements are compared with.

As a command it runs in the foreground until SIGINT or SIGTERM, and prints the same line as kaas once it is ready:
    Kafka is ready: bootstrap.servers=127.0.0.1:PORT
As a module: `KafkaBroker(data_dir, flush_each_message=...)` starts one, `.stop()` ends it.
"""
import argparse
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import uuid

HERE = pathlib.Path(__file__).resolve().parent
CLIENTS = HERE.parent.parent / "broker" / "tests" / "clients"


def cache_dir():
    """Where `install` put things: the same rule as in that script."""
    if os.environ.get("KAAS_TEST_CLIENTS_DIR"):
        return pathlib.Path(os.environ["KAAS_TEST_CLIENTS_DIR"])
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.environ.get("HOME", "/root"), ".cache")
    return pathlib.Path(base) / "kaas-test-clients"


def class_path(name="kafka-4"):
    """The class path of one Kafka tool set; ends the program with a hint when it is not installed."""
    home = cache_dir() / name
    if not (home / "libs").is_dir():
        sys.exit(f"{name} is not installed; run ./test, or {CLIENTS / 'install'} --only {name}")
    return f"{home / 'classes'}:{home / 'libs'}/*"


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# The options of Kafka's own start script, so that the comparison is with Kafka as it is run.
JVM_OPTIONS = ["-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
               "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true"]


class KafkaBroker:
    name = "kafka"

    def __init__(self, data_dir, port=0, flush_each_message=False, heap="1G", settings=(), log_level="WARN"):
        self.data_dir = pathlib.Path(data_dir).resolve()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        controller = free_port()
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.data_dir / "logs"),
            # One broker: what Kafka's own single-node configuration sets, and no wait before a group's first rebalance.
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        if flush_each_message:
            lines["log.flush.interval.messages"] = "1"
        lines.update(s.split("=", 1) for s in settings)
        config = self.data_dir / "server.properties"
        config.write_text("".join(f"{k}={v}\n" for k, v in lines.items()))
        java = ["java", "-cp", class_path(), f"-Dlog.level={log_level}"]
        self.log = open(self.data_dir / "broker.log", "ab")
        started = time.monotonic()
        if not (self.data_dir / "logs" / "meta.properties").exists():
            cluster = uuid.uuid4().hex[:22]
            subprocess.run(java + ["-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)],
                           check=True, stdout=self.log, stderr=self.log, timeout=60)
        # The format step is not part of a start: it happens once in a broker's life.
        self.started = time.monotonic()
        self.format_s = self.started - started
        self.process = subprocess.Popen(java + [f"-Xms{heap}", f"-Xmx{heap}"] + JVM_OPTIONS + ["kafka.Kafka", str(config)],
                                        stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        self.bootstrap = f"127.0.0.1:{self.port}"

    @property
    def pid(self):
        return self.process.pid

    def wait_ready(self, timeout_s=60):
        """Returns once the listener accepts connections."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                time.sleep(0.02)
        tail = (self.data_dir / "broker.log").read_text(errors="replace")[-4000:]
        self.stop()
        raise RuntimeError(f"Kafka did not start within {timeout_s} s:\n{tail}")

    def stop(self, timeout_s=30):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one (default)")
    parser.add_argument("--flush-each-message", action="store_true", help="log.flush.interval.messages=1: fsync before the acknowledgement")
    parser.add_argument("--heap", default="1G", help="JVM heap, as Kafka's start script (default 1G)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any broker setting")
    arguments = parser.parse_args()
    broker = KafkaBroker(arguments.data_dir, arguments.port, arguments.flush_each_message, arguments.heap, arguments.set)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        broker.wait_ready()
        print(f"Kafka is ready: bootstrap.servers={broker.bootstrap}", flush=True)
        broker.process.wait()
        sys.exit(f"Kafka ended with {broker.process.returncode}; see {broker.data_dir / 'broker.log'}")
    finally:
        broker.stop()


if __name__ == "__main__":
    main()
