"""A whole Apache Kafka, taken over: import_kafka.py check --kaas PATH --kaas-engine PATH

Starts a real Kafka with two log directories, fills it (all compressions, transactions, one that nobody ends, a compacted topic, records
that were deleted and ones that retention has removed, leader epochs, committed offsets, a snapshot of its metadata), writes down everything
that a client can find out about it, and stops it. Imports its log directories, starts kaas on the result, writes the same down again, and
compares line by line. An idempotent producer that began with Kafka goes on with kaas.

What must be refused is: a Kafka that is running, a transaction that is open, a log directory that is not given, segments that are missing,
a topic that Kafka compacts by a default of its broker that the import is not told of.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from clientlib import check, expect, wait_for, whole_check
from javatools import QUICK, class_path

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent.parent / "benches" / "kafka"))
from kafka_broker import KafkaBroker  # noqa: E402

# A cleaner that does its work at once; records that lie long ago stay.
SETTINGS = ["log.cleaner.backoff.ms=200", "log.initial.task.delay.ms=200",
            # Kafka answers a question about a time with nothing while segments below the log start are still there.
            "log.retention.check.interval.ms=200", "log.roll.ms=100000000", "log.retention.ms=-1",
            "offsets.topic.num.partitions=5", "transaction.state.log.num.partitions=3",
            # Soon after its start it ends the transactions whose time is over.
            "transaction.abort.timed.out.transaction.cleanup.interval.ms=500",
            "metadata.log.max.record.bytes.between.snapshots=4096"]


def client(mode, *arguments):
    command = ["java", *QUICK, "-cp", class_path("kafka-4"), str(HERE / "java" / "ImportData.java"), mode, *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    check(done.returncode == 0 and done.stdout.strip().endswith("ok"), f"ImportData {mode}: {done.stdout[-500:]} {done.stderr[-1500:]}")


class Kaas:
    def __init__(self, program, data_dir, listen):
        self.process = subprocess.Popen([program, "--data-dir", data_dir, "--listen", listen], stdin=subprocess.DEVNULL,
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


def run(arguments):
    with tempfile.TemporaryDirectory() as folder:
        return Import(pathlib.Path(folder), arguments).check()


class Import:
    def __init__(self, folder, programs):
        self.folder = folder
        self.programs = programs
        self.log_dirs = [folder / "kafka" / "logs", folder / "kafka" / "more-logs"]
        self.data = folder / "data"

    def start_kafka(self, log_dirs=None, home="kafka", port=0):
        log_dirs = ",".join(map(str, log_dirs or self.log_dirs))
        kafka = KafkaBroker(self.folder / home, settings=[*SETTINGS, f"log.dirs={log_dirs}"], heap="512M", port=port)
        return kafka.wait_ready()

    def run_import(self, *more, log_dirs=None, data=None):
        command = [self.programs.kaas_engine, "import", "--json", *map(str, more), *map(str, log_dirs or self.log_dirs), str(data or self.data)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        check(done.stdout, f"import: {done.stderr[-1000:]}")
        return done.returncode, json.loads(done.stdout)

    def refused(self, problem, log_dirs=None):
        code, report = self.run_import(log_dirs=log_dirs)
        expect((code, self.data.exists()), (1, False), f"an import that has problems: {problem}")
        found = [p["problem"] for p in report["problems"]]
        check(any(problem in p for p in found), f"{problem!r} is not told of, but {found}")
        return found

    def verify(self, data=None):
        done = subprocess.run([self.programs.kaas_engine, "verify", str(data or self.data)], capture_output=True, text=True, timeout=60)
        expect(done.returncode, 0, f"exit code of verify: {done.stdout}")

    def check(self):
        began = time.monotonic()
        holder = None
        try:
            port = self.fill()
            # Beside a Kafka that runs: it is to be stopped while the producer waits.
            kafka = self.start_kafka(port=port)
            try:
                command = ["java", *QUICK, "-cp", class_path("kafka-4"), str(HERE / "java" / "ImportData.java"), "hold", kafka.bootstrap]
                holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                expect(holder.stdout.readline(), "holds\n", "what the producer that waits says")
                client("end", kafka.bootstrap, self.folder / "kafka.txt")
                self.refused("running")
            finally:
                kafka.stop()
            kafka_s = time.monotonic() - began
            self.refused("of \"codec-", log_dirs=self.log_dirs[:1])
            self.lost_segments()
            self.inherited()
            records = self.take_over(port, holder)
        finally:
            if holder and holder.poll() is None:
                holder.kill()
                holder.wait()
        return f"ok: {records} records compared, Kafka took {kafka_s:.0f} s"

    def fill(self):
        """Fills a Kafka, and stops it while a transaction is open. Returns the port that it had."""
        kafka = self.start_kafka()
        try:
            client("begin", kafka.bootstrap)
            # A stop and a start are another leader epoch.
            kafka.stop()
            kafka = self.start_kafka(port=kafka.port)
            client("leave", kafka.bootstrap)
        finally:
            kafka.stop()
        snapshots = [p.name for p in self.log_dirs[0].parent.glob("*/__cluster_metadata-0/*.checkpoint")]
        check(any(not name.startswith("0" * 20) for name in snapshots), f"Kafka has made no snapshot of its metadata: {snapshots}")
        expect(len(self.refused("1 open transaction, the first of producer ")), 1, "problems with an open transaction")
        return kafka.port

    def lost_segments(self):
        """Of copies of the directories: what Kafka does not notice. It goes on with what there is, and then so does the import."""
        copies = [self.folder / "copy" / directory.name for directory in self.log_dirs]

        def logs(topic):
            return sorted(path for copy in copies for path in copy.glob(f"{topic}-0/*.log"))

        def remove(log):
            for path in log.parent.glob(log.stem + ".*"):
                path.unlink()

        shutil.copytree(self.folder / "kafka", self.folder / "copy")
        bases = [int(log.stem) for log in logs("trimmed")]
        check(bases[0] < 550 < bases[1], f"the log start, 550, is not in the first segment: {bases}")
        remove(logs("trimmed")[0])
        remove(logs("codec-zstd")[-1])
        remove(logs("codec-none")[1])
        first_left, last_left = int(logs("trimmed")[0].stem), int(logs("codec-zstd")[-1].stem)
        found = self.refused(f"trimmed-0: offsets 550 to {first_left - 1} are missing: the log begins at 550", copies)
        check(any("codec-zstd-0: offset" in p and f"{last_left:020}.log, ends at" in p for p in found), f"a missing end is not told of: {found}")
        check(any("missing before it" in p for p in found), f"a gap is not told of: {found}")
        shutil.rmtree(logs("codec-none")[0].parent)
        self.refused("there is no directory codec-none-0, whose log ended at 400", copies)
        for log in logs("codec-zstd"):
            log.unlink()
        self.refused("codec-zstd-0: offsets 0 to 399 are missing: the log ended at 400, and there is no segment", copies)
        self.start_kafka(copies, home="copy").stop()
        code, report = self.run_import("--dry-run", log_dirs=copies)
        expect((code, report["problems"]), (0, []), "an import once Kafka has been started and stopped")

    def inherited(self):
        """Topics that have their configs from the broker: compacted by its server.properties, kept as long as its dynamic configs say."""
        settings = ["log.cleanup.policy=compact", "log.roll.hours=2", "log.roll.ms=300", "log.cleaner.min.cleanable.ratio=0.01"]
        home, data = self.folder / "inherits", self.folder / "inherits-data"
        kafka = KafkaBroker(home, settings=[setting for setting in SETTINGS if not setting.startswith("log.ro")] + settings, heap="512M")
        kafka.wait_ready()
        logs = home / "logs"
        try:
            client("inherit", kafka.bootstrap)
            checkpoint = logs / "cleaner-offset-checkpoint"
            wait_for(lambda: checkpoint.exists() and "inherits 0 " in checkpoint.read_text(), lambda: "Kafka has not compacted the topic")
        finally:
            kafka.stop()
        code, report = self.run_import(log_dirs=[logs], data=data)
        expect((code, data.exists()), (1, False), "an import of a topic whose policy is not known")
        problems = [problem["problem"] for problem in report["problems"]]
        expect(problems, ['"inherits" has been compacted, as this file says, and nothing else here tells its cleanup.policy'], "problems")
        code, report = self.run_import("--server-properties", home / "server.properties", log_dirs=[logs], data=data)
        expect((code, report["is_done"]), (0, True), "an import with the broker's server.properties")
        topics = {topic["name"]: topic for topic in report["topics"]}
        expected = {"cleanup.policy": "compact", "max.message.bytes": "1500000", "min.cleanable.dirty.ratio": "0.01", "retention.ms": "223456789",
                    "segment.ms": "300"}
        expect(topics["inherits"]["configs"], expected, "configs that a topic inherits")
        expect(topics["own"]["configs"], {**expected, "cleanup.policy": "delete", "retention.ms": "-1"}, "configs of a topic that has some itself")
        expect([left["name"] for left in report["broker_defaults_not_carried"]], ["compression.type"], "what is left behind of the defaults")
        compacted = int(re.search(r"inherits 0 (\d+)", checkpoint.read_text()).group(1))
        check(compacted > 0, "Kafka has compacted nothing")
        expect(topics["inherits"]["partitions"][0]["first_dirty_offset"], compacted, "how far the topic is compacted")
        self.verify(data)

    def take_over(self, port, holder):
        code, report = self.run_import("--dry-run")
        expect((code, report["problems"], self.data.exists()), (0, [], False), "a dry run")
        expect((report["doubts"], report["passed_over"], report["not_here"]), ([], [], []), "what a whole Kafka leaves unclear")
        topics = {topic["name"]: topic for topic in report["topics"]}
        policies = {topic["configs"].get("cleanup.policy") for topic in topics.values()}
        check("compact" in policies, f"no topic is compacted: {policies}")
        check(topics["retained"]["partitions"][0]["log_start_offset"] > 0, "retention has removed nothing")
        # Or kaas would remove what is compared.
        as_it_is = ["--config", "cleanup.policy=delete", "--config", "retention.bytes=-1"]
        code, report = self.run_import(*as_it_is)
        expect((code, report["is_done"]), (0, True), "the import")
        configs = {topic["name"]: topic["configs"] for topic in report["topics"]}
        expected = {"cleanup.policy": "delete", "index.interval.bytes": "512", "retention.bytes": "-1", "retention.ms": "-1", "segment.ms": "600"}
        expect(configs["codec-gzip"], expected, "configs")
        epochs = {p["highest_leader_epoch"] for topic in report["topics"] for p in topic["partitions"]}
        check(max(epochs) >= 2, f"Kafka's restarts were no leader epochs: {epochs}")
        self.verify()

        kaas = Kaas(self.programs.kaas, str(self.data), f"127.0.0.1:{port}")
        try:
            client("compare", kaas.bootstrap, self.folder / "kaas.txt")
            records = compare(self.folder / "kafka.txt", self.folder / "kaas.txt")
            out, err = holder.communicate("\n", timeout=120)
            check(holder.returncode == 0 and out.strip().endswith("ok"), f"the producer that waited: {out[-500:]} {err[-1500:]}")
        finally:
            err = kaas.stop()
        check("ERROR" not in err, f"kaas complained: {err[-1500:]}")
        self.same_producer()
        self.verify()
        code, report = self.run_import(*as_it_is)
        expect((code, report["topics"], len(report["already_there"])), (0, [], len(configs)), "the same import again")
        return records

    def same_producer(self):
        """The batches of the producer that waited have one id and epoch, and sequences without a gap."""
        command = [self.programs.kaas_engine, "dump", "--json", str(self.data / "topics" / "held" / "0")]
        dumped = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
        batches = [line for line in map(json.loads, dumped.splitlines()) if line["kind"] == "batch"]
        batches.sort(key=lambda batch: batch["base_offset"])
        producers = {(batch["producer"]["id"], batch["producer"]["epoch"]) for batch in batches}
        expect(len(producers), 1, f"producers of the topic held: {producers}")
        expect([batch["producer"]["base_sequence"] for batch in batches], [batch["base_offset"] for batch in batches], "sequences")
        check(len(batches) > 30, f"{len(batches)} batches")


if __name__ == "__main__":
    whole_check(__doc__, run)
