//! Makes the seed corpus. The same bytes every time but for ids and times, which do not matter; small, and of everything that a
//! target knows: every compression, indexes, journals with snapshots, whole directories, as they are and with right checksums
//! whatever becomes of them.

use std::path::Path;
use std::sync::Arc;

use crate::{Archive, Item, Target, journal as journal_target, recovery as recovery_target};
use bytes::Bytes;
use kaas_engine::batch::{
    BatchOptions, Compression, EndMarker, Marker, Producer, SimpleRecord, control_batch, data_batch,
};
use kaas_engine::identity::{Identity, write_partition};
use kaas_engine::import::{self, Source};
use kaas_engine::index::{AbortedTransaction, OffsetIndex, TimeIndex, TimestampOffset, TxnIndex};
use kaas_engine::io::{IoPool, IoPoolSettings};
use kaas_engine::journal::{self, Journal, JournalSettings};
use kaas_engine::leadership::Claimant;
use kaas_engine::types::{Epoch, Offset, ProducerId, Timestamp};
use kaas_engine::{AppendOptions, Engine, EngineSettings, LogConfig, ManualClock, OpenPartition};
use kaas_protocol::{
    ApiKey, FetchRequest, JoinGroupRequest, Message, MetadataRequest, ProduceRequest, RequestHeader,
    Segments, encode_request_frame,
};
use kaas_substrate::{Local, Memory, Substrate, create_root, write_small};

const START: Timestamp = Timestamp(1_700_000_000_000);

/// Writes the seeds of the target `name`, which is `run`, into `dir`.
pub fn write(name: &str, run: Target, dir: &Path) {
    create_root(dir).expect("a directory for seeds");
    let corpus = Local::open(dir).expect("a directory for seeds");
    for (name, bytes) in seeds(name) {
        // A seed that fails is a mistake here.
        run(&bytes);
        write_small(&corpus, Path::new(&name), &bytes).expect("a seed");
    }
}

fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let named = |seeds: Vec<(&str, Vec<u8>)>| -> Vec<(String, Vec<u8>)> {
        seeds.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).collect()
    };
    match target {
        "batch" => batches(),
        "index" => named(indexes()),
        "producer_state" => {
            let partition = partition();
            let snapshots = partition.0.into_iter().filter(|item| item.path.contains("producer-state"));
            snapshots.enumerate().map(|(n, item)| (format!("snapshot-{n}"), item.content)).collect()
        }
        "recovery" => archives(vec![
            ("closed", partition()),
            ("crashed", crashed_partition()),
            ("compacted", compacted_partition()),
        ]),
        "journal" => archives(vec![("lines", slot(false)), ("snapshot", slot(true))]),
        "request" => requests(),
        "verify" => archives(vec![
            ("partition", crashed_partition()),
            ("damaged", damaged_partition()),
            ("compacted", compacted_partition()),
            ("links", with_links(damaged_partition())),
            ("data", imported(&kafka())),
            ("data-compacted", imported(&compacted_kafka())),
        ]),
        "import" => {
            archives(vec![("kafka", kafka()), ("crashed", crashed_kafka()), ("compacted", compacted_kafka())])
        }
        _ => Vec::new(),
    }
}

/// Each as it is, and with right checksums.
fn archives(seeds: Vec<(&str, Archive)>) -> Vec<(String, Vec<u8>)> {
    let both = |(name, archive): (&str, Archive)| {
        // Checksums that are right stay as they are.
        let renewed = Archive::unpack(&archive.clone().renewed().pack());
        assert!(name == "damaged" || name == "links" || renewed == archive, "{name} has changed");
        [(name.to_owned(), archive.pack()), (format!("{name}-renewed"), archive.renewed().pack())]
    };
    seeds.into_iter().flat_map(both).collect()
}

fn records(count: usize) -> Vec<SimpleRecord> {
    (0..count).map(|n| SimpleRecord::of(format!("key-{n}"), format!("value-{n}"))).collect()
}

fn options(producer: Option<i64>) -> BatchOptions {
    let producer = producer.map(|id| Producer { id: ProducerId(id), epoch: 0, base_sequence: 0 });
    BatchOptions { base_timestamp: START, producer, ..BatchOptions::default() }
}

fn batch_of(count: usize, producer: Option<i64>) -> Bytes {
    data_batch(&records(count), &options(producer)).expect("a batch")
}

fn marker(id: i64) -> Bytes {
    let marker = EndMarker { marker: Marker::Abort, coordinator_epoch: 1 };
    control_batch(marker, ProducerId(id), 0, START).expect("a marker")
}

fn batches() -> Vec<(String, Vec<u8>)> {
    let compressions =
        [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];
    let mut seeds: Vec<_> = compressions
        .into_iter()
        .map(|compression| {
            let batch =
                data_batch(&records(3), &BatchOptions { compression, ..options(Some(7)) }).expect("a batch");
            (compression.name().to_owned(), batch.to_vec())
        })
        .collect();
    seeds.push(("marker".into(), marker(7).to_vec()));
    seeds.push(("two".into(), [batch_of(1, None), batch_of(2, None)].concat()));
    seeds
}

fn indexes() -> Vec<(&'static str, Vec<u8>)> {
    let mut offsets = OffsetIndex::new(Offset(1000));
    let mut times = TimeIndex::new(Offset(1000));
    let mut transactions = TxnIndex::new();
    for n in 1..6_i64 {
        offsets.append(Offset(1000 + 10 * n), n.unsigned_abs() * 5000).expect("an entry");
        let entry = TimestampOffset { timestamp: Timestamp(START.0 + n), offset: Offset(1000 + 10 * n) };
        times.maybe_append(entry).expect("an entry");
        let aborted = AbortedTransaction {
            producer_id: ProducerId(n),
            first_offset: Offset(1000 + n),
            last_offset: Offset(1000 + 10 * n),
            last_stable_offset: Offset(1000 + 10 * n),
        };
        transactions.append(&aborted).expect("an entry");
    }
    let asked = |kind: u8, bytes: &[u8]| [&[kind][..], &1020_i64.to_be_bytes(), bytes].concat();
    vec![
        ("offset", asked(0, offsets.as_bytes())),
        ("time", asked(1, times.as_bytes())),
        ("txn", asked(2, transactions.as_bytes())),
        ("together", asked(3, &[offsets.as_bytes(), times.as_bytes()].concat())),
    ]
}

/// How a leader ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Close,
    Crash,
}

/// A small log under two leaders: two segments, indexes, producers, with an open end after a crash.
fn partition_after(end: End, is_compacted: bool) -> Archive {
    let volume: Arc<dyn Substrate> = Arc::new(Memory::new());
    let dir = Path::new(recovery_target::DIR);
    let identity = Identity { topic: "orders".into(), partition: 0, topic_id: [7; 16] };
    volume.create_dir(dir).expect("a directory");
    write_partition(&*volume, dir, &identity, Epoch::NONE).expect("a partition");
    for epoch in 1..3 {
        let clock = Arc::new(ManualClock::new(START));
        let settings = EngineSettings { checkpoint_distance_bytes: 300, ..EngineSettings::default() };
        let engine = Engine::open(Arc::clone(&volume), settings, clock).expect("an engine");
        let config = LogConfig { segment_bytes: 500, index_interval_bytes: 100, ..LogConfig::default() };
        let partition = engine
            .open_partition(OpenPartition {
                dir: dir.to_owned(),
                identity: identity.clone(),
                epoch: Epoch::new(epoch).expect("an epoch"),
                claimant: Claimant { broker_id: 1, incarnation: "seeds".into(), assignment_version: 0 },
                config: LogConfig { compact: is_compacted, delete: !is_compacted, ..config },
            })
            .expect("it opens");
        for n in 0..4 {
            let producer = (!is_compacted).then_some(i64::from(epoch * 10 + n));
            partition.append_and_wait(&batch_of(2, producer), AppendOptions::default()).expect("an append");
        }
        partition.compact_now().expect("a round of compaction");
        let ended = if end == End::Close || epoch == 1 { partition.close() } else { partition.abandon() };
        ended.wait().expect("an end").expect("an end");
        engine.close();
    }
    Archive::of(&*volume, Path::new(""))
}

fn partition() -> Archive {
    partition_after(End::Close, false)
}

fn crashed_partition() -> Archive {
    partition_after(End::Crash, false)
}

fn compacted_partition() -> Archive {
    let compacted = partition_after(End::Crash, true);
    assert!(compacted.0.iter().any(|item| item.path.ends_with("-00000001.log")), "nothing was compacted");
    compacted
}

/// With a batch that cannot be read.
fn damaged_partition() -> Archive {
    let mut damaged = crashed_partition();
    let log = damaged.0.iter_mut().find(|item| item.path.ends_with(".log")).expect("a log");
    log.content[70] ^= 1;
    damaged
}

/// With links in the way of a repair, to a directory beside.
fn with_links(mut partition: Archive) -> Archive {
    for (name, target) in
        [("quarantine", "beside"), ("stray", "beside/secret"), ("manifest.00000003.1.json", "beside/new")]
    {
        let path = format!("{}/{name}@", recovery_target::DIR);
        partition.0.push(Item { path, content: target.into() });
    }
    partition
}

fn slot(with_snapshot: bool) -> Archive {
    let volume: Arc<dyn Substrate> = Arc::new(Memory::new());
    let dir = Path::new(journal_target::DIR);
    journal::birth(&*volume, dir, "1").expect("a slot");
    let pool = IoPoolSettings { name: "seeds", max_threads: 1, idle_ms: 10, max_queued: 10 };
    let pool = Arc::new(IoPool::new(pool).expect("a thread"));
    let claimant = Claimant { broker_id: 1, incarnation: "seeds".into(), assignment_version: 0 };
    let epoch = Epoch::new(1).expect("an epoch");
    let opened = Journal::open(&volume, dir, epoch, &claimant, &pool, JournalSettings::default());
    let (journal, _) = opened.expect("it opens");
    for n in 0..3 {
        journal.append(&[n]).wait().expect("an append");
    }
    if with_snapshot {
        journal.write_snapshot(journal.committed(), &[0, 1, 2]).wait().expect("a snapshot");
        journal.append(&["behind"]).wait().expect("an append");
    }
    journal.close();
    drop(journal);
    Archive::of(&*volume, Path::new(""))
}

/// A frame for every API in its lowest and highest version: empty, and some that are not.
fn requests() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for (name, api, full) in [
        ("produce", ApiKey::Produce, frame(9, &ProduceRequest { acks: -1, ..Default::default() })),
        ("fetch", ApiKey::Fetch, frame(12, &FetchRequest { max_bytes: 100, ..Default::default() })),
        ("metadata", ApiKey::Metadata, frame(12, &MetadataRequest::default())),
        (
            "join",
            ApiKey::JoinGroup,
            frame(9, &JoinGroupRequest { group_id: "g".into(), ..Default::default() }),
        ),
    ] {
        seeds.push((name.to_owned(), full));
        let _ = api;
    }
    for api in ApiKey::ALL {
        let versions = api.versions();
        for version in [versions.min, versions.max] {
            let mut bytes = (*api as i16).to_be_bytes().to_vec();
            bytes.extend_from_slice(&version.to_be_bytes());
            bytes.extend_from_slice(&[0; 24]);
            seeds.push((format!("{api:?}-{version}"), bytes));
        }
    }
    seeds
}

fn frame<M: Message + kaas_protocol::Request>(api_version: i16, request: &M) -> Vec<u8> {
    let header =
        RequestHeader { api_version, correlation_id: 7, client_id: Some("me".into()), ..Default::default() };
    let mut out = Segments::new();
    encode_request_frame(&mut out, &header, request).expect("a frame");
    out.to_bytes().expect("bytes").slice(4..).to_vec()
}

/// What an import makes of a log directory of Kafka.
fn imported(kafka: &Archive) -> Archive {
    let kafka = kafka.volume();
    let target: Arc<dyn Substrate> = Arc::new(Memory::new());
    let sources = [Source { volume: Arc::new(kafka), only: None }];
    let options = import::Options { node_id: 1, after_crash: true, ..import::Options::default() };
    let progress = import::Progress::default();
    let plan = import::plan(&sources, Some(&*target), &options, &progress).expect("a plan");
    let report = plan.carry_out(&target, &progress).expect("an import");
    assert!(report.is_done, "{:?}", report.problems);
    Archive::of(&*target, Path::new(""))
}

/// A batch as it stands in a log.
fn at(batch: &[u8], offset: i64, epoch: i32) -> Vec<u8> {
    let mut bytes = batch.to_vec();
    bytes[..8].copy_from_slice(&offset.to_be_bytes());
    bytes[12..16].copy_from_slice(&epoch.to_be_bytes());
    bytes
}

fn item(path: &str, content: &[u8]) -> Item {
    Item { path: path.to_owned(), content: content.to_vec() }
}

/// A log directory of a Kafka that was stopped cleanly, with the directory of one partition, `orders-0`, and with `items`.
fn stopped_kafka(items: Vec<Item>) -> Archive {
    let mut all = vec![
        item(".kafka_cleanshutdown", b""),
        item("meta.properties", b"version=1\ncluster.id=abcdefghijklmnopqrstuv\n"),
        item("orders-0/", b""),
        item("orders-0/partition.metadata", b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"),
    ];
    all.extend(items);
    Archive(all)
}

/// A log directory as a Kafka leaves it that was killed: the end is torn, behind the recovery point.
fn crashed_kafka() -> Archive {
    let torn = at(&batch_of(2, None), 7, 3);
    let mut items = kafka().0;
    items.retain(|item| item.path != ".kafka_cleanshutdown");
    for item in &mut items {
        if item.path == "orders-0/00000000000000000004.log" {
            item.content.extend_from_slice(&torn[..torn.len() - 5]);
        }
    }
    Archive(items)
}

/// A log directory with a compacted topic: gaps between batches and segments, an epoch without records, Kafka's metadata.
fn compacted_kafka() -> Archive {
    let metadata =
        |parts: &[&[u8]]| SimpleRecord { value: Some(parts.concat().into()), ..SimpleRecord::of_value("") };
    let id: Vec<u8> = (0..16).collect();
    let metadata = [
        metadata(&[&[1, 2, 0, 7], b"orders", &id, &[0]]),
        metadata(&[&[1, 3, 0, 0, 0, 0, 0], &id, &[0]]),
        metadata(&[&[1, 4, 0, 2, 7], b"orders", &[15], b"cleanup.policy", &[8], b"compact", &[0]]),
        metadata(&[&[1, 4, 0, 4, 1, 17], b"log.retention.ms", &[6], b"50000", &[0]]),
    ];
    let metadata = data_batch(&metadata, &options(None)).expect("a batch");
    stopped_kafka(vec![
        item("recovery-point-offset-checkpoint", b"0\n1\norders 0 30\n"),
        item("server.properties", b"# of a broker\nlog.roll.hours=2\nlog.retention.bytes: \\\n  70000\n"),
        item("cleaner-offset-checkpoint", b"0\n1\norders 0 20\n"),
        item("__cluster_metadata-0/", b""),
        item("__cluster_metadata-0/00000000000000000000.log", &at(&metadata, 0, 1)),
        item("orders-0/leader-epoch-checkpoint", b"0\n3\n0 0\n1 12\n2 17\n"),
        item("orders-0/00000000000000000000.index", b""),
        item(
            "orders-0/00000000000000000000.log",
            &[at(&batch_of(2, None), 3, 0), at(&batch_of(1, None), 9, 0)].concat(),
        ),
        item("orders-0/00000000000000000014.log", &at(&batch_of(1, None), 19, 2)),
        item("orders-0/00000000000000000030.log", b""),
    ])
}

/// A log directory as Kafka leaves it.
fn kafka() -> Archive {
    let aborted = BatchOptions { transactional: true, ..options(Some(9)) };
    let aborted = data_batch(&records(1), &aborted).expect("a batch");
    stopped_kafka(vec![
        item("log-start-offset-checkpoint", b"0\n1\norders 0 1\n"),
        item("recovery-point-offset-checkpoint", b"0\n1\norders 0 6\n"),
        item("orders-0/leader-epoch-checkpoint", b"0\n2\n0 0\n3 4\n"),
        item("orders-0/00000000000000000000.log", &at(&batch_of(4, Some(8)), 0, 0)),
        item(
            "orders-0/00000000000000000004.log",
            &[at(&aborted, 4, 3), at(&marker(9), 5, 3), at(&batch_of(1, None), 6, 3)].concat(),
        ),
        item("orders-1/", b""),
        item("orders-1/00000000000000000000.log", b""),
    ])
}
