#!/usr/bin/env python3
"""kaas beside Apache Kafka: same machine, same disk, same clients, in interleaved rounds.

Starts one broker a side, all at once and each on a fresh directory, warms them up, then runs every measure ROUNDS times: within a
round the sides take turns (their order alternates), and the disk is synced before each turn. Prints a table and writes JSON with every
value. Sides:

  kaas           acknowledges what is on disk (its only way with acks=all and default settings)
  kafka-synced   Kafka with log.flush.interval.messages=1: the same durability
  kafka          Kafka as it comes: acknowledges what is in the page cache

Sides may be given twice under other names to see the noise: --sides kafka,again=kafka.

Needs what broker/tests/clients/install installs. Uses loopback only.
"""
import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from kafka_broker import KafkaBroker, cache_dir, class_path, free_port

HERE = pathlib.Path(__file__).resolve().parent
TICK = os.sysconf("SC_CLK_TCK")
RECORD = 1024
# Kafka's own tools, with the heap that their start script gives them.
JAVA = ["java", "-Xmx512M", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Djava.awt.headless=true", "-cp"]


class KaasBroker:
    name = "kaas"

    def __init__(self, binary, data_dir, port=0):
        self.data_dir = pathlib.Path(data_dir)
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.log = open(self.data_dir.parent / f"{self.data_dir.name}.log", "ab")
        self.started = time.monotonic()
        self.process = subprocess.Popen([binary, "--data-dir", str(self.data_dir), "--listen", self.bootstrap], stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=self.log)

    pid = KafkaBroker.pid
    stop = KafkaBroker.stop

    def wait_ready(self, timeout_s=30):
        return wait_for_port(self, timeout_s)


def wait_for_port(broker, timeout_s):
    import socket
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and broker.process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", broker.port), 1).close()
            return broker
        except OSError:
            time.sleep(0.005)
    sys.exit(f"{broker.name} did not start within {timeout_s} s; see {broker.log.name}")


def make(kind, arguments, data_dir, port=0):
    if kind == "kaas":
        return KaasBroker(arguments.kaas, data_dir, port)
    settings = ["log.segment.delete.delay.ms=1000"]
    if kind == "kafka":
        return KafkaBroker(data_dir, port, settings=settings)
    if kind == "kafka-synced":
        return KafkaBroker(data_dir, port, flush_each_message=True, settings=settings)
    sys.exit(f"unknown side: {kind}")


def cpu_seconds(pid):
    """User and system time of a process and all its threads so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def rss_mib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


class Watch:
    """CPU seconds of a broker, and its largest resident set, over a stretch of work."""

    def __init__(self, pid):
        self.pid, self.peak, self.done = pid, rss_mib(pid), threading.Event()

    def __enter__(self):
        self.before = cpu_seconds(self.pid)
        self.thread = threading.Thread(target=self.sample, daemon=True)
        self.thread.start()
        return self

    def sample(self):
        while not self.done.wait(0.1):
            self.peak = max(self.peak, rss_mib(self.pid))

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()
        self.cpu = cpu_seconds(self.pid) - self.before


def java(main_class, *arguments, timeout_s=600):
    done = subprocess.run([*JAVA, class_path("kafka-4"), main_class, *map(str, arguments)], capture_output=True, text=True, timeout=timeout_s)
    if done.returncode != 0:
        sys.exit(f"{main_class} ended with {done.returncode}: {done.stdout[-800:]} {done.stderr[-800:]}")
    return done.stdout


def load(*arguments, timeout_s=600):
    done = subprocess.run([sys.executable, str(HERE / "load.py"), *map(str, arguments)], capture_output=True, text=True, timeout=timeout_s)
    if done.returncode != 0:
        sys.exit(f"load.py {' '.join(map(str, arguments))} ended with {done.returncode}: {done.stderr[-800:]}")
    return json.loads(done.stdout.splitlines()[-1])


class Topics:
    """Creates and deletes topics; one admin client a broker."""

    def __init__(self):
        self.clients, self.count = {}, 0

    def admin(self, broker):
        from confluent_kafka.admin import AdminClient
        return self.clients.setdefault(broker.bootstrap, AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0}))

    def create(self, broker, partitions):
        from confluent_kafka.admin import NewTopic
        self.count += 1
        name = f"bench-{self.count}"
        self.admin(broker).create_topics([NewTopic(name, partitions, 1)])[name].result(30)
        for _ in range(200):
            if name in self.admin(broker).list_topics(timeout=30).topics:
                break
            time.sleep(0.02)
        return name

    def delete(self, broker, name):
        self.admin(broker).delete_topics([name])[name].result(30)


TOPICS = Topics()


def perf_produce(broker, topic, records):
    """kafka-producer-perf-test; its own figures."""
    out = java("org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--num-records", records, "--record-size", RECORD,
               "--throughput", -1, "--producer-props", f"bootstrap.servers={broker.bootstrap}", "acks=all")
    last = [line for line in out.splitlines() if "records sent" in line][-1]
    rate, mib = re.search(r"([\d.]+) records/sec \(([\d.]+) MB/sec\)", last).groups()
    p50, p99 = re.search(r"(\d+) ms 50th.*?(\d+) ms 99th", last).groups()
    return {"records_s": float(rate), "mb_s": float(mib) * 1.048576, "p50_ms": float(p50), "p99_ms": float(p99)}


class Measures:
    """Each takes (side name, broker) and gives {name: value}; names ending in _s of rates are better when larger (see BETTER)."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.records = {}
        self.loaded = {}
        self.peaks = {}

    def calibrated(self, side, kind, rate):
        """Records for about SECONDS of work, from the rate of the warm-up: sides differ by an order of magnitude."""
        self.records[side, kind] = max(20_000, min(int(rate * self.arguments.seconds), 3_000_000))

    def warm_up(self, side, broker):
        for partitions in (1, 16):
            topic = TOPICS.create(broker, partitions)
            perf_produce(broker, topic, 20_000)
            rate = perf_produce(broker, topic, 60_000 if side != "kafka-synced" else 20_000)["records_s"]
            self.calibrated(side, f"perf-{partitions}", rate)
            TOPICS.delete(broker, topic)
        topic = TOPICS.create(broker, 4)
        rate = load("produce", broker.bootstrap, topic, 4, 50_000, RECORD)["records_s"]
        self.calibrated(side, "librdkafka", rate)
        load("consume", broker.bootstrap, topic, 4, 50_000)
        TOPICS.delete(broker, topic)

    def watched(self, side, broker, work, *arguments):
        with Watch(broker.pid) as watch:
            result = work(*arguments)
        self.peaks[side] = max(self.peaks.get(side, 0), watch.peak)
        return result, watch.cpu

    def produce(self, side, broker, partitions):
        topic = TOPICS.create(broker, partitions)
        records = self.records[side, f"perf-{partitions}"]
        result, cpu = self.watched(side, broker, perf_produce, broker, topic, records)
        TOPICS.delete(broker, topic)
        return {"mb_s": result["mb_s"], "p50_ms": result["p50_ms"], "p99_ms": result["p99_ms"], "cpu_s_per_gb": cpu / (records * RECORD / 1e9)}

    def produce_1(self, side, broker):
        return self.produce(side, broker, 1)

    def produce_16(self, side, broker):
        return self.produce(side, broker, 16)

    def produce_librdkafka(self, side, broker):
        topic = TOPICS.create(broker, 4)
        records = self.records[side, "librdkafka"]
        result, cpu = self.watched(side, broker, load, "produce", broker.bootstrap, topic, 4, records, RECORD)
        TOPICS.delete(broker, topic)
        return {"mb_s": result["mb_s"], "cpu_s_per_gb": cpu / (records * RECORD / 1e9)}

    def filled(self, side, broker):
        """A topic with `consume_mb` of records, made once a side; the same batches everywhere."""
        if side not in self.loaded:
            records = int(self.arguments.consume_mb * 1e6 / RECORD)
            topic = TOPICS.create(broker, 4)
            load("produce", broker.bootstrap, topic, 4, records, RECORD)
            self.loaded[side] = topic, records
        return self.loaded[side]

    def consume_java(self, side, broker):
        topic, records = self.filled(side, broker)
        group = f"{topic}-{time.monotonic_ns()}"
        out, cpu = self.watched(side, broker, java, "org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", broker.bootstrap,
                                "--topic", topic, "--num-records", records, "--group", group, "--timeout", 60000)
        row = out.strip().splitlines()[-1].split(",")
        # fetch.MB.sec: without the time that joining the group took. In MiB, of keys and values.
        return {"mb_s": float(row[8]) * 1.048576, "cpu_s_per_gb": cpu / (records * RECORD / 1e9)}

    def consume_librdkafka(self, side, broker):
        topic, records = self.filled(side, broker)
        result, cpu = self.watched(side, broker, load, "consume", broker.bootstrap, topic, 4, records)
        return {"mb_s": result["mb_s"], "cpu_s_per_gb": cpu / (records * RECORD / 1e9)}

    def latency(self, side, broker):
        topic = TOPICS.create(broker, 1)
        result, _ = self.watched(side, broker, load, "latency", broker.bootstrap, topic, 1000, self.arguments.seconds, 1000)
        TOPICS.delete(broker, topic)
        return {k: result[k] for k in ("p50_ms", "p99_ms", "p999_ms", "max_ms")}


BETTER = {"mb_s": "more", "p50_ms": "less", "p99_ms": "less", "p999_ms": "less", "max_ms": "less", "cpu_s_per_gb": "less", "s": "less", "mib": "less"}
TITLES = {
    "produce_1": "kafka-producer-perf-test, 1 partition", "produce_16": "kafka-producer-perf-test, 16 partitions",
    "produce_librdkafka": "librdkafka produce, 4 partitions", "consume_java": "kafka-consumer-perf-test, 4 partitions",
    "consume_librdkafka": "librdkafka consume, 4 partitions", "latency": "end to end at 1,000 records/s",
    "start": "start to first acknowledged record", "memory_idle": "resident set, idle", "memory_load": "resident set, largest under load",
}


def start_measure(kind, arguments, folder):
    """Seconds from the start of the process to the first acknowledged record, on a fresh directory; and the idle resident set."""
    if kind != "kaas":
        # Kafka's format step is done once in a broker's life and not measured: start, stop, start again on the empty broker.
        broker = make(kind, arguments, folder)
        broker.wait_ready()
        port = broker.port
        broker.stop()
    else:
        port = free_port()
    ready = subprocess.Popen([sys.executable, str(HERE / "load.py"), "first", f"127.0.0.1:{port}", "first", "60"], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
    time.sleep(1.0)
    broker = make(kind, arguments, folder, port)
    out, err = ready.communicate(timeout=90)
    if ready.returncode != 0:
        broker.stop()
        sys.exit(f"{kind}: {err}")
    seconds = json.loads(out.splitlines()[-1])["acknowledged_at"] - broker.started
    broker.stop()
    return seconds


def disk_of(path):
    line = subprocess.run(["df", "-PT", str(path)], capture_output=True, text=True).stdout.splitlines()[-1].split()
    return f"{line[1]} on {line[0]}"


def machine(root):
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)", pathlib.Path("/proc/meminfo").read_text())
    return {"cpu": model.group(1) if model else platform.machine(), "cores": os.cpu_count(), "memory_gib": round(int(memory.group(1)) / 2**20, 1),
            "kernel": platform.release(), "disk": disk_of(root), "date": time.strftime("%Y-%m-%d")}


def summary(values):
    return {"min": min(values), "median": statistics.median(values), "max": max(values), "values": values}


def report(results, sides, first):
    """Markdown: a row a measure and figure; the median (min to max), and the median of each round's ratio of the first side to another."""
    others = [s for s in sides if s != first]
    print(f"| measure | figure | {' | '.join(sides)} | {' | '.join(f'{first} : {o}' for o in others)} |")
    print("| --- | --- |" + " --- |" * (len(sides) + len(others)))
    for measure, figures in results.items():
        for figure, by_side in figures.items():
            cells = []
            for s in sides:
                v = by_side.get(s)
                cells.append(f"{v['median']:.4g} ({v['min']:.4g} to {v['max']:.4g})" if v else "")
            for o in others:
                ratio = by_side.get("ratios", {}).get(o)
                cells.append(f"{ratio['median']:.2f}" if ratio else "")
            print(f"| {TITLES.get(measure, measure)} | {figure} ({BETTER[figure]} is better) | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kaas", help="the kaas binary (release build)")
    parser.add_argument("--sides", default="kaas,kafka-synced,kafka", help="comma separated, or NAME=KIND")
    parser.add_argument("--measures", default="start,produce_1,produce_16,produce_librdkafka,consume_java,consume_librdkafka,latency",
                        help="comma separated (default: all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8, help="about how long one turn of a produce or latency measure takes")
    parser.add_argument("--consume-mb", type=float, default=1000, help="size of the topic that is consumed")
    parser.add_argument("--data-root", default=None, help="folder on the disk to measure (default: the system's temporary folder)")
    parser.add_argument("--json", default=None, help="write every value here")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    sides = {}
    for s in arguments.sides.split(","):
        name, _, kind = s.partition("=")
        sides[name] = kind or name
    if "kaas" in sides.values() and not arguments.kaas:
        parser.error("--kaas PATH is needed for the side kaas")
    if arguments.kaas:
        arguments.kaas = str(pathlib.Path(arguments.kaas).resolve(strict=True))
    measures = [m for m in arguments.measures.split(",") if m]
    unknown = [m for m in measures if m != "start" and not hasattr(Measures, m)]
    if unknown:
        parser.error(f"unknown measures: {', '.join(unknown)}")
    root = pathlib.Path(tempfile.mkdtemp(prefix="kaas-compare-", dir=arguments.data_root))
    filesystem = disk_of(root)
    if filesystem.startswith("tmpfs"):
        parser.error(f"{root} is in memory: give --data-root on a disk")
    results, brokers = {}, {}

    def note(measure, side, values):
        for figure, value in values.items():
            results.setdefault(measure, {}).setdefault(figure, {}).setdefault(side, []).append(value)

    def turns(number):
        names = list(sides)
        turned = names[number % len(names):] + names[:number % len(names)]
        return turned if number % 2 == 0 else list(reversed(turned))

    def log(text):
        print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)

    try:
        if "start" in measures:
            for number in range(arguments.rounds):
                for side in turns(number):
                    os.sync()
                    folder = root / f"start-{side}-{number}"
                    note("start", side, {"s": start_measure(sides[side], arguments, folder)})
                    shutil.rmtree(folder, ignore_errors=True)
            log("start measured")
        for side, kind in sides.items():
            brokers[side] = make(kind, arguments, root / side).wait_ready()
        time.sleep(5)
        for side, broker in brokers.items():
            note("memory_idle", side, {"mib": rss_mib(broker.pid)})
        work = Measures(arguments)
        for side, broker in brokers.items():
            work.warm_up(side, broker)
            log(f"{side}: warm; records a turn: { {k[1]: v for k, v in work.records.items() if k[0] == side} }")
        for measure in measures:
            if measure == "start":
                continue
            for number in range(arguments.rounds):
                for side in turns(number):
                    os.sync()
                    time.sleep(0.5)
                    values = getattr(work, measure)(side, brokers[side])
                    note(measure, side, values)
                    log(f"{measure} round {number + 1} {side}: " + ", ".join(f"{k} {v:.4g}" for k, v in values.items()))
        for side, peak in work.peaks.items():
            note("memory_load", side, {"mib": peak})
    finally:
        for broker in brokers.values():
            broker.stop()
        shutil.rmtree(root, ignore_errors=True)

    first = next(iter(sides))
    final = {}
    for measure, figures in results.items():
        for figure, by_side in figures.items():
            entry = final.setdefault(measure, {}).setdefault(figure, {})
            for side, values in by_side.items():
                entry[side] = summary(values)
            entry["ratios"] = {o: summary([a / b for a, b in zip(by_side[first], by_side[o]) if b]) for o in by_side
                               if o != first and first in by_side and any(by_side[o])}
    about = {"machine": machine(arguments.data_root or tempfile.gettempdir()), "sides": sides, "rounds": arguments.rounds,
             "seconds": arguments.seconds, "record_bytes": RECORD, "consume_mb": arguments.consume_mb,
             "kafka": next((j.name for j in (cache_dir() / "kafka-4" / "libs").glob("kafka-clients-*.jar")), "unknown"),
             "command": " ".join(["compare.py", *sys.argv[1:]])}
    print(json.dumps(about["machine"]))
    report(final, list(sides), first)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps({"about": about, "results": final}, indent=1) + "\n")


if __name__ == "__main__":
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        # The libraries are in the test clients' own environment.
        python = cache_dir() / "python" / "bin" / "python"
        if not python.exists() or sys.executable == str(python):
            sys.exit("the test clients are not installed: run ./test, or broker/tests/clients/install")
        os.execv(python, [str(python), *sys.argv])
    main()
