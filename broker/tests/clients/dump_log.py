"""Kafka's own kafka-dump-log over the files of a partition: dump_log.py check --log FILE [--index FILE] [--timeindex FILE] ...

Copies the files to the names that Kafka gives them (the base offset, 20 digits), runs DumpLogSegments with every record decoded
and with the sanity checks of its indexes, and reports every complaint. Prints a summary as JSON, for the caller to compare with
what it wrote: {"records": N, "batches": N, "first_offset": A, "last_offset": B}.
"""
import argparse
import json
import pathlib
import re
import shutil
import sys
import tempfile

from clientlib import check, end, expect
from javatools import Tools

# What DumpLogSegments prints when something is wrong (it exits with 0 all the same).
COMPLAINTS = [
    "isvalid: false", "Found timestamp mismatch", "Found out of order timestamp", "Found indexes are not sorted", "Exception", "corrupt",
    "Non-consecutive", "bytes of trash", "invalid", "Index position", "mismatch", "out of order", "not equal",
]


def dump(tools, path, *more, gaps=False):
    code, out, err = tools.run("kafka-dump-log", "--files", path, *more, timeout_s=60)
    check(code == 0, f"kafka-dump-log {' '.join(more)} of {path.name} ended with {code}: {err[-1500:]}")
    # Kafka's tool says this of every segment that does not start at 0, its own too: it begins to count at -1.
    base = int(path.stem)
    said = (out + err).replace(f"Non-consecutive offsets in {path}\n  -1 is followed by {base}\n", "") if base else out + err
    if gaps:
        # It says this of every log that was compacted, Kafka's own too.
        said = re.sub(r"Non-consecutive offsets in .*\n(  -?\d+ is followed by \d+\n)+", "", said)
    check("is followed by" not in said, f"kafka-dump-log finds offsets of {path.name} that are not consecutive: {said[-600:]}")
    found = [c for c in COMPLAINTS if c.lower() in said.lower().replace("isvalid: true", "")]
    check(not found, f"kafka-dump-log complains of {path.name} ({', '.join(found)}):\n{out[-1500:]}\n{err[-1500:]}")
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=["check"])
    parser.add_argument("--log", required=True, type=pathlib.Path)
    parser.add_argument("--index", type=pathlib.Path)
    parser.add_argument("--timeindex", type=pathlib.Path)
    parser.add_argument("--txnindex", type=pathlib.Path)
    parser.add_argument("--base-offset", type=int, default=0)
    parser.add_argument("--gaps", action="store_true", help="offsets may be missing: the log was compacted")
    parser.add_argument("--kafka", default="kafka-4")
    parser.add_argument("--bootstrap", help="ignored: every client program takes it")
    parser.add_argument("--prefix", help="ignored: every client program takes it")
    arguments = parser.parse_args()
    tools = Tools(arguments.kafka)
    with tempfile.TemporaryDirectory() as folder:
        # Kafka keeps a partition's files in a folder named TOPIC-PARTITION, and looks for the log beside an index.
        partition = pathlib.Path(folder) / "topic-0"
        partition.mkdir()
        base = f"{arguments.base_offset:020}"
        copies = {}
        for kind in ("log", "index", "timeindex", "txnindex"):
            source = getattr(arguments, kind)
            if source is not None:
                copies[kind] = partition / f"{base}.{kind}"
                shutil.copyfile(source, copies[kind])
        out = dump(tools, copies["log"], "--deep-iteration", "--print-data-log", gaps=arguments.gaps)
        offsets = [int(o) for o in re.findall(r"^\| offset: (\d+)", out, re.M)]
        batches = re.findall(r"^baseOffset: (\d+) lastOffset: (\d+)", out, re.M)
        size = int(re.findall(r"^(?:baseOffset: .*position: (\d+).* size: (\d+))", out, re.M)[-1][0]) if batches else 0
        sizes = re.findall(r"position: (\d+) .*?\bsize: (\d+)", out)
        if sizes:
            size = int(sizes[-1][0]) + int(sizes[-1][1])
        expect(size, copies["log"].stat().st_size, "bytes that kafka-dump-log could read of the log")
        summary = {"records": len(offsets), "batches": len(batches), "bytes": size}
        if offsets:
            summary.update(first_offset=offsets[0], last_offset=offsets[-1])
        for kind in ("index", "timeindex"):
            if kind in copies:
                dumped = dump(tools, copies[kind], "--verify-index-only")
                dump(tools, copies[kind], "--index-sanity-check")
                full = dump(tools, copies[kind])
                summary[f"{kind}_entries"] = len(re.findall(r"^(?:offset: \d+ position|timestamp: -?\d+ offset)", full or dumped, re.M))
        if "txnindex" in copies:
            dump(tools, copies["txnindex"])
    end(0, json.dumps(summary))


if __name__ == "__main__":
    try:
        main()
    except Exception as e:
        end(1, f"FAILED dump-log: {e}")
