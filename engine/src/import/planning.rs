//! The first pass of an import: everything is read and checked, and nothing is written.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kaas_config::{BrokerConfigs, ConfigError, TopicConfigs, Value, topic_definition};
use kaas_substrate::{OpenMode, Substrate};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::defaults::{Defaults, Layers, ServerProperties};
use super::group_offsets::{self, GroupOffsets};
use super::kafka_files::{CLEANER_CHECKPOINT, INTERNAL_TOPICS};
use super::missing::doubt_about_start;
use super::read::{Nowhere, ReadPartition, log_path, read_partition};
use super::report::{ClusterIdReport, ConfigReport, Report};
use super::source::{self, Source, SourcePartition, shown};
use super::target;
use super::{CARRIED_CONFIGS, ImportError, Options, Plan, PlannedTopic, Problem, Progress, interval_bytes};
use crate::layout::{PRODUCER_IDS_BLOCK, TOPICS_DIR};

/// Above this there is no whole block of producer ids.
const PRODUCER_IDS_MAX: i64 = i64::MAX - PRODUCER_IDS_BLOCK;

const CLEANUP_POLICY: &str = "cleanup.policy";

/// What kaas would refuse of a topic's configs: Kafka takes values that kaas could only ignore, and `--config` takes any.
fn wrong_configs(topic: &str, configs: &BTreeMap<String, String>) -> Vec<Problem> {
    let wrong = |error: ConfigError| {
        let hint = "set another value with --config NAME=VALUE, or change it in Kafka";
        Problem::new(PathBuf::from(topic), error.to_string(), hint)
    };
    let each = configs.iter().filter_map(|(name, text)| match topic_definition(name) {
        Some(definition) => Value::parse(definition, text).err(),
        None => Some(ConfigError::UnknownTopicConfig { name: name.clone() }),
    });
    let mut problems: Vec<_> = each.map(wrong).collect();
    if problems.is_empty() {
        // What they come to together.
        let defaults = BrokerConfigs::new(0, BTreeMap::new());
        let together = defaults.and_then(|defaults| TopicConfigs::validate(configs, &defaults));
        problems.extend(together.err().map(wrong));
    }
    problems
}

/// Tells of a topic that Kafka has compacted, though nothing that is here says so: it has the policy from a static config, or had
/// it once. As one whose policy is "delete" it would lose what Kafka keeps.
fn unknown_policy(topic: &PlannedTopic) -> Option<Problem> {
    let was_compacted = |(partition, read): &&(SourcePartition, ReadPartition)| {
        partition.cleaned_up_to.is_some() || read.lacks_records
    };
    let (partition, _) = topic.partitions.iter().find(was_compacted)?;
    let (path, by) = match partition.cleaned_up_to {
        Some(_) => (Path::new(CLEANER_CHECKPOINT), "as this file says"),
        None => (&*partition.dir, "since batches lack records"),
    };
    Some(Problem::new(
        shown(&*partition.volume, path),
        format!("{:?} has been compacted, {by}, and nothing else here tells its cleanup.policy", topic.name),
        "it may be the default of Kafka's broker: give its --server-properties FILE, or set the policy of the topic with \
         --topic NAME --config cleanup.policy=compact (or =delete)",
    ))
}

/// An id for a topic whose files do not say theirs: the same each time, so that an import that is begun again knows the topic.
fn new_topic_id(cluster_id: Option<&str>, topic: &str) -> [u8; 16] {
    let mut hasher = SipHasher13::new();
    cluster_id.unwrap_or_default().hash(&mut hasher);
    topic.hash(&mut hasher);
    *uuid::Builder::from_random_bytes(hasher.finish128().as_bytes()).as_uuid().as_bytes()
}

/// Reads and checks everything in `sources`. Writes nothing; `target` is looked at, if it is there already.
///
/// The problems come in [`Report::problems`]; with any, [`Plan::carry_out`] is not to be called, and does nothing.
///
/// # Errors
///
/// Only what keeps it from looking at all: a volume that fails, a target that is no data directory.
pub fn plan(
    sources: &[Source],
    target: Option<&dyn Substrate>,
    options: &Options,
    progress: &Progress,
) -> Result<Plan, ImportError> {
    let mut problems = Vec::new();
    let existing = target.map(target::look).transpose()?.unwrap_or_default();
    let found = source::find(sources, options, &mut problems)?;
    let fixed = options.server_properties.as_ref();
    if let Some(fixed) = fixed {
        fixed.check(&found.nodes, &mut problems);
    }
    let mut nodes = found.nodes;
    if nodes.is_empty() {
        // Where no meta.properties says it.
        nodes.extend(fixed.and_then(ServerProperties::node_id));
    }
    let mut report = Report::new(found.passed_over, found.metadata.is_some(), fixed.is_some());
    let (metadata_dir, metadata) = found.metadata.unwrap_or_default();
    let layers = Layers {
        metadata: metadata_dir,
        own: nodes.iter().map(|id| metadata.configs_of_broker(*id)).collect(),
        all: metadata.configs_of_all_brokers(),
        fixed,
    };
    let defaults = Defaults::resolve(&layers, &options.configs);
    let mut own_configs = Vec::new();
    if options.topics.is_empty() && sources.iter().all(|source| source.only.is_none()) {
        let is_here = |name: &str| found.topics.contains_key(name) || INTERNAL_TOPICS.contains(&name);
        report.not_here = metadata.topics().filter(|name| !is_here(name)).map(str::to_owned).collect();
        report.not_here.sort_unstable();
    }
    let cluster_id = found.cluster_id.map(|(id, _)| id);
    report.cluster_id_left = cluster_id
        .clone()
        .zip(existing.cluster_id)
        .and_then(|(kafka, kept)| (kafka != kept).then_some(ClusterIdReport { kafka, kept }));
    progress.total.store(log_bytes(&found.topics), Ordering::Relaxed);
    problems.extend(colliding_names(existing.topics.keys().chain(found.topics.keys())));
    let mut topics: Vec<PlannedTopic> = Vec::new();
    for (name, partitions) in found.topics {
        let known_id = partitions.iter().find_map(|partition| partition.topic_id);
        let id = known_id.unwrap_or_else(|| new_topic_id(cluster_id.as_deref(), &name));
        if let Some(there) = existing.topics.get(&name) {
            if there.as_ref() == Some(&URL_SAFE_NO_PAD.encode(id)) {
                report.already_there.push(name);
            } else {
                let path = target.map(|target| shown(target, &Path::new(TOPICS_DIR).join(&name)));
                problems.push(Problem::new(
                    path.unwrap_or_default(),
                    format!("the data directory has another topic {name:?}"),
                    "delete one of them, or name the topics to import with --topic",
                ));
            }
            continue;
        }
        let own = metadata.configs(&name);
        let (mut configs, not_carried): (BTreeMap<_, _>, BTreeMap<_, _>) =
            own.clone().into_iter().partition(|(name, _)| CARRIED_CONFIGS.contains(&name.as_str()));
        defaults.apply(&mut configs);
        let is_compacted = |configs: &BTreeMap<String, String>| {
            configs.get(CLEANUP_POLICY).is_some_and(|policy| policy.contains("compact"))
        };
        let was_compacted = is_compacted(&configs);
        // Kafka's metadata says what a topic has itself, and the file what it has else.
        let is_known = own.contains_key(CLEANUP_POLICY)
            || options.configs.contains_key(CLEANUP_POLICY)
            || options.gaps.contains(&name)
            || was_compacted
            || (report.has_metadata
                && (report.has_server_properties || configs.contains_key(CLEANUP_POLICY)));
        own_configs.push(own);
        configs.extend(options.configs.clone());
        problems.extend(wrong_configs(&name, &configs));
        let mut topic = PlannedTopic {
            id,
            has_new_id: known_id.is_none(),
            not_carried: not_carried.into_iter().map(ConfigReport::new).collect(),
            // What the topic is to be is no sign of what it was, unless there is no other.
            may_have_gaps: was_compacted
                || (!report.has_metadata && is_compacted(&configs))
                || options.gaps.contains(&name),
            name,
            partitions: Vec::with_capacity(partitions.len()),
            configs,
        };
        read_partitions(&mut topic, partitions, progress, &mut problems)?;
        if !is_known {
            problems.extend(unknown_policy(&topic));
        }
        report
            .doubts
            .extend(topic.partitions.iter().filter_map(|(partition, _)| doubt_about_start(partition)));
        report.add(&topic);
        topics.push(topic);
    }
    defaults.tell(&own_configs, &mut report, &mut problems);
    let mut groups = GroupOffsets::default();
    if !options.without_groups {
        groups = GroupOffsets::read(sources, metadata.partitions_of(group_offsets::TOPIC), &mut problems);
        groups.retain(|name| topics.iter().any(|topic| topic.name == name));
    }
    (report.groups, report.committed_offsets) = groups.counts();
    let next_producer_id = next_producer_id(&topics).max(metadata.next_producer_id());
    if next_producer_id > PRODUCER_IDS_MAX {
        let path = sources.first().map(|source| source.volume.root().to_owned()).unwrap_or_default();
        problems.push(Problem::new(
            path,
            format!("producer ids up to {next_producer_id} are in use, which leaves none for kaas"),
            "no Kafka hands out such ids: leave the topic out whose producers have them, with --topic",
        ));
    }
    report.problems = problems;
    Ok(Plan { topics, groups, report, cluster_id, node_id: options.node_id, next_producer_id })
}

/// Bytes of all segments.
fn log_bytes(topics: &BTreeMap<String, Vec<SourcePartition>>) -> u64 {
    let mut bytes = 0;
    for partition in topics.values().flatten() {
        for base in &partition.logs {
            // What cannot be opened is told when it is to be read.
            let file = partition.volume.open(&log_path(partition, *base), OpenMode::Read);
            bytes += file.and_then(|file| file.length()).unwrap_or(0);
        }
    }
    bytes
}

/// Reads all partitions of a topic; what cannot be read is a problem.
fn read_partitions(
    topic: &mut PlannedTopic,
    partitions: Vec<SourcePartition>,
    progress: &Progress,
    problems: &mut Vec<Problem>,
) -> Result<(), ImportError> {
    let interval = interval_bytes(&topic.configs);
    for partition in partitions.into_iter().filter(|partition| partition.is_listed) {
        let may_have_gaps = topic.may_have_gaps || partition.cleaned_up_to.is_some();
        match read_partition(&partition, may_have_gaps, interval, &mut Nowhere, progress, problems) {
            Ok(read) => topic.partitions.push((partition, read)),
            Err(error) if progress.cancelled.load(Ordering::Relaxed) => return Err(error.into()),
            Err(error) => {
                let unreadable = Problem::unreadable(&*partition.volume, &error);
                // That it is no file may have been told.
                if problems.iter().all(|problem| problem.path != unreadable.path) {
                    problems.push(unreadable);
                }
            }
        }
    }
    Ok(())
}

/// Above every producer id in the logs.
fn next_producer_id(topics: &[PlannedTopic]) -> i64 {
    let ids = topics.iter().flat_map(|topic| &topic.partitions).flat_map(|(_, read)| {
        let known = read.producers.producers().map(|(id, _)| id);
        known.chain(read.highest_producer)
    });
    ids.map(|id| id.0.saturating_add(1)).max().unwrap_or(0)
}

/// Names of which Kafka takes only one, since they have the same metrics.
fn colliding_names<'a>(names: impl Iterator<Item = &'a String>) -> Vec<Problem> {
    let mut known = BTreeMap::new();
    let collides = |name: &'a String| {
        let other = known.insert(name.replace('.', "_"), name).filter(|other| *other != name)?;
        Some(Problem::new(
            PathBuf::from(name),
            format!("its name differs from that of the topic {other:?} only in '.' and '_'"),
            "Kafka takes only one of the two: leave one out, with --topic",
        ))
    };
    names.filter_map(collides).collect()
}
