"""A whole Apache Kafka, taken over: import_kafka.py check --kaas PATH --kaas-engine PATH

Starts a real Kafka, fills it (all compressions, transactions, a compacted topic, deleted records, two leader epochs, committed
offsets), writes down everything that a client can find out about it, and stops it. Imports its log directory, starts kaas on the
result, writes the same down again, and compares line by line. Then an idempotent producer that began with Kafka's ids goes on.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from clientlib import Failed, check, end, expect
from javatools import QUICK, class_path

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent.parent / "benches" / "kafka"))
from kafka_broker import KafkaBroker  # noqa: E402

# A cleaner that does its work at once; records that lie long ago stay.
SETTINGS = ["log.cleaner.backoff.ms=200", "log.initial.task.delay.ms=200",
            # Kafka answers a question about a time with nothing while segments below the log start are still there.
            "log.retention.check.interval.ms=200", "log.roll.ms=100000000", "log.retention.ms=-1",
            "offsets.topic.num.partitions=5", "transaction.state.log.num.partitions=3"]


def client(mode, *arguments):
    command = ["java", *QUICK, "-cp", class_path("kafka-4"), str(HERE / "java" / "ImportData.java"), mode, *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    check(done.returncode == 0 and done.stdout.strip().endswith("ok"), f"ImportData {mode}: {done.stdout[-500:]} {done.stderr[-1500:]}")


class Kaas:
    def __init__(self, program, data_dir):
        self.process = subprocess.Popen([program, "--data-dir", data_dir, "--listen", "127.0.0.1:0"], stdin=subprocess.DEVNULL,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        said = ""
        while not (found := re.search(r"bootstrap.servers=(\S+)", said)):
            line = self.process.stdout.readline()
            check(line, f"kaas did not start: {said}")
            said += line
        self.bootstrap = found.group(1)

    def stop(self):
        self.process.terminate()
        _, err = self.process.communicate(timeout=30)
        expect(self.process.returncode, 0, "exit code of kaas")
        return err


def compare(kafka, kaas):
    kafka, kaas = kafka.read_text().splitlines(), kaas.read_text().splitlines()
    records = sum(1 for line in kafka if line.startswith("  "))
    check(records > 8000, f"only {records} records were read of Kafka")
    for number, (a, b) in enumerate(zip(kafka, kaas), 1):
        check(a == b, f"line {number}: Kafka said {a!r:.300}, kaas says {b!r:.300}")
    expect(len(kaas), len(kafka), "lines")
    return records


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=["check"])
    parser.add_argument("--kaas", required=True)
    parser.add_argument("--kaas-engine", required=True)
    parser.add_argument("--bootstrap", help="ignored: every client program takes it")
    parser.add_argument("--prefix", help="ignored: every client program takes it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        logs, data = folder / "kafka" / "logs", folder / "data"

        def run_import(*more):
            done = subprocess.run([arguments.kaas_engine, "import", "--json", *more, str(logs), str(data)], capture_output=True, text=True,
                                  timeout=60)
            check(done.stdout, f"import: {done.stderr[-1000:]}")
            return done.returncode, json.loads(done.stdout)

        began = time.monotonic()
        kafka = KafkaBroker(folder / "kafka", settings=SETTINGS, heap="512M").wait_ready()
        try:
            client("begin", kafka.bootstrap)
            # A stop and a start are another leader epoch.
            kafka.stop()
            kafka = KafkaBroker(folder / "kafka", settings=SETTINGS, heap="512M").wait_ready()
            client("end", kafka.bootstrap, folder / "kafka.txt")
            code, report = run_import()
            expect(code, 1, "exit code of an import of a Kafka that is running")
            check("running" in report["problems"][0]["problem"], report["problems"])
        finally:
            kafka.stop()
        kafka_s = time.monotonic() - began

        code, report = run_import("--dry-run")
        expect((code, report["problems"], data.exists()), (0, [], False), "a dry run")
        policies = {topic["configs"].get("cleanup.policy") for topic in report["topics"]}
        check("compact" in policies, f"no topic is compacted: {policies}")
        # Or kaas would compact what is compared.
        not_compacted = ["--config", "cleanup.policy=delete"]
        code, report = run_import(*not_compacted)
        expect((code, report["is_done"]), (0, True), "the import")
        configs = {topic["name"]: topic["configs"] for topic in report["topics"]}
        expected = {"cleanup.policy": "delete", "index.interval.bytes": "512", "retention.ms": "-1", "segment.ms": "600"}
        expect(configs["codec-gzip"], expected, "configs")
        epochs = {p["highest_leader_epoch"] for topic in report["topics"] for p in topic["partitions"]}
        check(max(epochs) >= 1, f"Kafka's restart was not another leader epoch: {epochs}")
        verified = subprocess.run([arguments.kaas_engine, "verify", str(data)], capture_output=True, text=True, timeout=60)
        expect(verified.returncode, 0, f"exit code of verify: {verified.stdout}")

        kaas = Kaas(arguments.kaas, str(data))
        try:
            client("compare", kaas.bootstrap, folder / "kaas.txt")
            records = compare(folder / "kafka.txt", folder / "kaas.txt")
        finally:
            err = kaas.stop()
        check("ERROR" not in err, f"kaas complained: {err[-1500:]}")
        verified = subprocess.run([arguments.kaas_engine, "verify", str(data)], capture_output=True, text=True, timeout=60)
        expect(verified.returncode, 0, f"exit code of verify, after kaas has used it: {verified.stdout}")
        code, report = run_import(*not_compacted)
        expect((code, report["topics"], len(report["already_there"])), (0, [], len(configs)), "the same import again")
    end(0, f"ok: {records} records compared, Kafka took {kafka_s:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except Failed as e:
        end(1, f"FAILED import: {e}")
