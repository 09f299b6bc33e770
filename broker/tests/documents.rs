//! The tables of `docs/` that say what the code says: generated here, and compared with what the documents have.
//!
//! A table stands between two comments, `<!-- table: NAME -->` and `<!-- end of table: NAME -->`. After a change of the code,
//! `KAAS_WRITE_DOCS=1 cargo test -p kaas-broker --test documents` writes the tables anew; the words around them are written by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use clap::CommandFactory;
use kaas_broker::api::registry::APIS;
use kaas_broker::api::{SessionLimits, registry};
use kaas_broker::config::{
    ConfigError, ConfigType, Definition, Effect, Valid, Value, broker_definition, broker_definitions,
    topic_definitions,
};
use kaas_broker::group::state::GroupConfig;
use kaas_broker::net;
use kaas_broker::server::Options;
use kaas_control::metadata::FileStoreSettings;
use kaas_engine::EngineSettings;
use kaas_engine::journal::JournalSettings;
use kaas_engine::verify::{Kind, Severity};
use kaas_protocol::ApiKey;

fn document(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)
}

/// A table in Markdown.
fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut text = String::new();
    let mut line = |cells: &[String]| writeln!(text, "| {} |", cells.join(" | ")).unwrap();
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    line(&head);
    line(&vec!["---".to_owned(); head.len()]);
    for row in rows {
        assert_eq!(row.len(), head.len(), "{row:?}");
        line(&row.iter().map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>());
    }
    text
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}

/// Tests of one run that write one document take turns.
static WRITING: Mutex<()> = Mutex::new(());

/// Compares the table `name` of a document with `expected`, or writes it there.
fn check(file: &str, name: &str, expected: &str) {
    let path = document(file);
    let _turn = WRITING.lock();
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- table: {name} -->\n"), format!("<!-- end of table: {name} -->"));
    let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("docs/{file} has no table {name}"));
    let (found, after) =
        rest.split_once(&end).unwrap_or_else(|| panic!("the table {name} of docs/{file} does not end"));
    if std::env::var_os("KAAS_WRITE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{begin}{expected}{end}{after}")).unwrap();
        return;
    }
    let different = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "docs/{file}: the table {name} is not what the code says. The first line that differs (of {} and {}):\n  \
         document: {}\n  code:     {}\nIf the code is right: KAAS_WRITE_DOCS=1 cargo test -p kaas-broker --test documents",
        found.lines().count(),
        expected.lines().count(),
        different.map_or("", |lines| lines.0),
        different.map_or("", |lines| lines.1),
    );
}

/// Values of a config that are named one by one.
fn named_values(definition: &Definition) -> Vec<&'static str> {
    match (definition.valid, definition.kind) {
        (Valid::OneOf(values) | Valid::ListOf(values), _) => values.to_vec(),
        (_, ConfigType::Boolean) => vec!["true", "false"],
        _ => Vec::new(),
    }
}

fn refusal(definition: &Definition, value: &str) -> Option<&'static str> {
    match Value::parse(definition, value) {
        Err(ConfigError::Unsupported { reason, .. }) => Some(reason),
        Err(error) => panic!("{error}"),
        Ok(_) => None,
    }
}

/// Which values are accepted.
fn range(definition: &Definition) -> String {
    let named = named_values(definition);
    if !named.is_empty() {
        let taken: Vec<_> = named.iter().filter(|value| refusal(definition, value).is_none()).collect();
        let taken = taken.iter().map(|value| code(value)).collect::<Vec<_>>().join(", ");
        return if matches!(definition.valid, Valid::ListOf(_)) {
            format!("{taken}, or empty")
        } else {
            taken
        };
    }
    let largest = match definition.kind {
        ConfigType::Int => " to 2147483647",
        _ => "",
    };
    match definition.valid {
        Valid::AtLeast(min) if largest.is_empty() => format!("from {min}"),
        Valid::AtLeast(min) => format!("{min}{largest}"),
        Valid::Between(min, max) => format!("{min} to {max}"),
        Valid::BetweenOr(min, max, other) => format!("{min} to {max}, or {other}"),
        Valid::UnlimitedOrAtLeastOne => "-1 (no limit), or from 1".to_owned(),
        Valid::Ratio => "0 to 1".to_owned(),
        Valid::Share => "above 0, at most 1".to_owned(),
        Valid::Positive => "above 0".to_owned(),
        Valid::ThrottledReplicas => "`*`, or `partition:broker` pairs".to_owned(),
        Valid::KafkaVersion => "a Kafka version from `0.11.0`".to_owned(),
        Valid::Any => "any".to_owned(),
        Valid::OneOf(_) | Valid::ListOf(_) => String::new(),
    }
}

fn default(definition: &Definition) -> String {
    match definition.default {
        None => "not set".to_owned(),
        Some("") => "empty".to_owned(),
        Some("9223372036854775807") => "2^63 - 1".to_owned(),
        Some("2147483647") => "2^31 - 1".to_owned(),
        Some(text) => code(text),
    }
}

fn effect(definition: &Definition) -> &'static str {
    let taken = named_values(definition).into_iter().filter(|value| refusal(definition, value).is_none());
    let only_one_value = taken.count() == 1 && !matches!(definition.valid, Valid::ListOf(_));
    match definition.effect {
        Effect::Acts if only_one_value => "no other value is supported",
        Effect::Acts if definition.dynamic => "at once",
        Effect::Acts => "at the start",
        Effect::Replicas => "none: no replicas",
        Effect::Compaction => "on compacted topics",
        Effect::Recompression => "none: batches are not compressed again",
        Effect::TieredStorage => "none: no tiered storage",
        Effect::OldFormats => "none: record format v2 only",
        Effect::AtOnce => "none: files are deleted at once",
    }
}

fn row(definition: &Definition) -> Vec<String> {
    vec![
        code(definition.name),
        definition.kind.to_string().to_lowercase(),
        default(definition),
        range(definition),
        effect(definition).to_owned(),
        definition.summary.clone().into_owned(),
    ]
}

const CONFIG_HEAD: [&str; 6] = ["config", "type", "default", "values", "takes effect", "what it does"];

#[test]
fn topic_configs() {
    let mut definitions: Vec<_> = topic_definitions().iter().collect();
    definitions.sort_by_key(|definition| definition.name);
    check("configuration.md", "topic configs", &table(&CONFIG_HEAD, definitions.into_iter().map(row)));
}

/// The broker configs behind topic configs say so in their summaries.
fn is_derived(definition: &Definition) -> bool {
    definition.summary.starts_with("The default of the topic config ")
}

#[test]
fn broker_configs() {
    let own = broker_definitions().iter().filter(|definition| !is_derived(definition));
    check("configuration.md", "broker configs", &table(&CONFIG_HEAD, own.map(row)));
    let derived = broker_definitions().iter().filter(|definition| is_derived(definition)).map(|definition| {
        let rest = definition.summary.strip_prefix("The default of the topic config ").unwrap();
        let (topic, words) = rest.split_once('.').map_or((rest, ""), |_| {
            let topic = topic_definitions()
                .iter()
                .filter(|topic| rest.starts_with(topic.name))
                .max_by_key(|topic| topic.name.len())
                .unwrap();
            (topic.name, &rest[topic.name.len()..])
        });
        let unit = if words.starts_with(", in minutes") {
            "minutes"
        } else if words.starts_with(", in hours") {
            "hours"
        } else {
            "as there"
        };
        let weaker_than = words
            .split_once("Counts only where ")
            .map_or("", |(_, name)| name.split_once(" is not set").unwrap().0);
        vec![
            code(definition.name),
            default(definition),
            range(definition),
            code(topic),
            unit.to_owned(),
            if definition.dynamic { "at once" } else { "at the start" }.to_owned(),
            code(weaker_than),
        ]
    });
    let head = [
        "config",
        "default",
        "values",
        "default of the topic config",
        "unit",
        "takes effect",
        "counts only without",
    ];
    check("configuration.md", "broker configs behind topic configs", &table(&head, derived));
}

#[test]
fn refused_values() {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut seen = BTreeSet::new();
    for definition in topic_definitions().iter().chain(broker_definitions()) {
        if !seen.insert(definition.name) {
            continue;
        }
        let mut values: Vec<&str> = named_values(definition);
        if matches!(definition.valid, Valid::KafkaVersion) {
            values.push("0.10.2");
        }
        for value in values {
            let Some(reason) = refusal(definition, value) else { continue };
            match rows.last_mut() {
                Some(row) if row[0] == code(definition.name) && row[2] == reason => {
                    row[1] = format!("{}, {}", row[1], code(value));
                }
                _ => rows.push(vec![code(definition.name), code(value), reason.to_owned()]),
            }
        }
    }
    check("configuration.md", "refused values", &table(&["config", "refused", "answer"], rows));
}

#[test]
fn flags() {
    let command = Options::command();
    let rows = command.get_arguments().filter(|argument| !argument.is_hide_set()).filter_map(|argument| {
        let flag = argument.get_long()?;
        let value = argument
            .get_value_names()
            .filter(|_| argument.get_action().takes_values())
            .map_or(String::new(), |names| format!(" {}", names[0]));
        let variable = argument.get_env().map_or(String::new(), |name| code(&name.to_string_lossy()));
        let default = argument.get_default_values().iter().map(|value| code(&value.to_string_lossy()));
        let help = argument.get_long_help().or(argument.get_help()).unwrap().to_string();
        let default: Vec<_> =
            if argument.get_action().takes_values() { default.collect() } else { Vec::new() };
        Some(vec![code(&format!("--{flag}{value}")), variable, default.join(" "), help.replace('\n', " ")])
    });
    let rows: Vec<_> = rows.collect();
    assert!(rows.len() >= 10, "{rows:?}");
    check("configuration.md", "flags", &table(&["flag", "environment", "default", "what it does"], rows));
}

#[test]
fn apis() {
    let mut served: Vec<_> = APIS.iter().collect();
    served.sort_by_key(|api| api.key.code());
    let rows = served.iter().map(|api| {
        let note = match api.advertised_min == api.versions.min {
            true => String::new(),
            false => format!("{} to {} are served", api.versions.min, api.versions.max),
        };
        let advertised = match api.advertised_min == api.versions.max {
            true => api.versions.max.to_string(),
            false => format!("{} to {}", api.advertised_min, api.versions.max),
        };
        vec![api.key.code().to_string(), api.key.to_string(), advertised, note]
    });
    check("kafka-compatibility.md", "apis", &table(&["key", "request", "versions", "note"], rows));
    let absent = ApiKey::ALL.iter().filter(|key| registry::find(key.code()).is_none());
    let rows = absent.map(|key| vec![key.code().to_string(), key.to_string()]);
    check("kafka-compatibility.md", "apis not served", &table(&["key", "request"], rows));
}

#[test]
fn findings() {
    for (severity, name) in
        [(Severity::Error, "errors"), (Severity::Warning, "warnings"), (Severity::Info, "infos")]
    {
        let kinds = Kind::ALL.iter().filter(|kind| kind.severity() == severity);
        let rows =
            kinds.map(|kind| vec![code(&kind.code()), kind.meaning().to_owned(), kind.action().to_owned()]);
        check("operating/verify.md", name, &table(&["code", "means", "to do"], rows));
    }
}

fn bytes(bytes: usize) -> String {
    match bytes {
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} bytes"),
    }
}

#[test]
fn bounds() {
    let (network, engine) = (net::Settings::default(), EngineSettings::default());
    let (journal, group) = (JournalSettings::default(), GroupConfig::default());
    let (sessions, store) = (SessionLimits::default(), FileStoreSettings::default());
    let rows: Vec<[String; 3]> = vec![
        [
            "requests being read or served, all connections".into(),
            bytes(network.queued_request_bytes),
            "`--request-memory-mib`; connections wait before they read more".into(),
        ],
        [
            "the largest Produce request".into(),
            bytes(network.request_max_bytes),
            "`socket.request.max.bytes`; a larger one closes the connection".into(),
        ],
        [
            "the largest other request".into(),
            bytes(network.other_request_max_bytes),
            "fixed, or `socket.request.max.bytes` if that is less".into(),
        ],
        [
            "requests of one connection that are not answered".into(),
            format!("{}, {}", network.in_flight_requests, bytes(network.in_flight_bytes)),
            "fixed; no more are read until some are answered".into(),
        ],
        [
            "records of one partition that wait for their commit".into(),
            bytes(engine.staged_bytes_max),
            "fixed; producers wait. They are part of the requests above".into(),
        ],
        [
            "records kept in memory for consumers, one partition".into(),
            bytes(engine.tail_bytes_max),
            format!(
                "fixed; dropped after {} s without an append, at the next round of retention",
                engine.tail_idle_ms / 1000
            ),
        ],
        [
            "the same, all partitions".into(),
            bytes(engine.tail_total_bytes_max),
            format!("fixed; beyond it each partition keeps {}", bytes(engine.tail_bytes_min)),
        ],
        [
            "keys of the logs that are being compacted".into(),
            bytes(engine.cleaner.dedupe_buffer_bytes),
            "`log.cleaner.dedupe.buffer.size`; more keys take more rounds".into(),
        ],
        [
            "closed segments that are open".into(),
            engine.open_segments_max.to_string(),
            "fixed; the oldest is closed".into(),
        ],
        [
            "log of a partition that an open after a crash verifies".into(),
            bytes(usize::try_from(engine.checkpoint_distance_bytes).unwrap()),
            "fixed; a checkpoint is written each time".into(),
        ],
        [
            "time that a call of a commit may take".into(),
            format!("{} s", engine.stall_limit_ms / 1000),
            "fixed; until it returns, appends to the partition fail at once".into(),
        ],
        [
            "threads for blocking calls on the volume".into(),
            broker_definition("num.io.threads").unwrap().default.unwrap().into(),
            "`num.io.threads`".into(),
        ],
        [
            "calls that wait for one of them".into(),
            engine.io.max_queued.to_string(),
            "fixed; clients get a retriable error".into(),
        ],
        [
            "appends of one slot of groups that wait".into(),
            format!("{}, {}", group.max_appends_in_flight, bytes(journal.max_staged_bytes)),
            "fixed; clients get `COORDINATOR_NOT_AVAILABLE`".into(),
        ],
        [
            "incremental fetch sessions".into(),
            sessions.sessions_max.to_string(),
            "`max.incremental.fetch.session.cache.slots`; without one, clients send whole requests".into(),
        ],
        [
            "partitions of all fetch sessions".into(),
            sessions.partitions_max.to_string(),
            "fixed; likewise".into(),
        ],
        [
            "partitions of one topic".into(),
            store.partitions_per_topic_max.to_string(),
            "fixed; more are refused with `INVALID_PARTITIONS`".into(),
        ],
    ];
    check(
        "operating/README.md",
        "bounds",
        &table(&["what", "bound", "set by; beyond it"], rows.into_iter().map(Vec::from)),
    );
}

/// What stands behind `mark` in a file of the tests' clients, up to one of `ends`.
fn pinned(file: &str, mark: &str, ends: &[char]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    let behind = text.split_once(mark).unwrap_or_else(|| panic!("{file} does not pin {mark}")).1;
    behind.split(ends).next().unwrap().to_owned()
}

#[test]
fn clients() {
    let python = |name: &str| pinned("requirements.txt", &format!("\n{name}=="), &['\n']);
    let kafka = |file: &str| {
        pinned(file, "<artifactId>kafka-tools</artifactId>\n      <version>", &['<']);
        pinned(file, "<artifactId>kafka_2.13</artifactId>\n      <version>", &['<'])
    };
    let rows: [[&str; 3]; 9] = [
        ["kcat", "librdkafka, C", "the system's package"],
        ["confluent-kafka", "librdkafka, Python", &python("confluent-kafka")],
        ["kafka-python", "Python", &python("kafka-python")],
        ["aiokafka", "Python", &python("aiokafka")],
        ["kafkajs", "JavaScript", &pinned("kafkajs/package.json", "\"kafkajs\": \"", &['"'])],
        ["franz-go", "Go", &pinned("franz-go/go.mod", "github.com/twmb/franz-go v", &['\n', ' '])],
        ["Apache Kafka's clients", "Java", &kafka("kafka-4/pom.xml")],
        ["Apache Kafka's clients", "Java", &kafka("kafka-3.7/pom.xml")],
        [
            "Apache Kafka's shell tools",
            "Java",
            &format!("{}, {}", kafka("kafka-4/pom.xml"), kafka("kafka-3.7/pom.xml")),
        ],
    ];
    let rows = rows.map(|row| row.map(str::to_owned).to_vec());
    check("kafka-compatibility.md", "clients", &table(&["client", "language", "version"], rows));
}
