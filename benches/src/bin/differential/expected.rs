//! Differences that are on purpose.

use super::transcript::Line;

struct Rule {
    /// Beginning of the case's name.
    case: &'static str,
    /// Part of the label (API, version, note).
    label: &'static str,
    /// Part of the line, or of what it lies in.
    line: &'static str,
    reason: &'static str,
}

const fn rule(case: &'static str, label: &'static str, line: &'static str, reason: &'static str) -> Rule {
    Rule { case, label, line, reason }
}

const VERSIONS: &str =
    "versions above those of Kafka 4.1, and features that are not built, are not advertised";
const TRANSACTIONS: &str = "transactions are not built yet, and refused";
const SAYS_WHY: &str = "kaas says why where Kafka gives a code only";
const RECORDS: &str =
    "records are never decoded: errors name no record, and what lies inside a batch is not checked";
const REPLICAS: &str = "any replication factor is accepted and is 1: the volume is the replica";
const INTERNAL: &str = "there are no internal topics";

const SYNCED: &str = "every record is synced: flush.messages is 1 by default";
const OLD_CONFIGS: &str = "configs of Kafka 3.7 that Kafka 4 has removed";
const OWN_CONFIGS: &str = "broker configs have defaults of their own, and addresses";
const KINDS: &str = "loggers, client metrics and groups have no configs yet";
const TRIMMED: &str = "values are described as they are understood";
const IDS: &str = "what was only asked about has no id";
const INSYNC: &str = "Kafka sets min.insync.replicas for the cluster when it is formatted";
const EXCEPTION: &str = "Kafka meets an exception";
const AT_ONCE: &str = "a topic that is created on demand is there at once";
const TWICE: &str = "each of two entries for one partition is answered; Kafka keeps one";

const RULES: &[Rule] = &[
    rule("topics-create-names", "'__", "", INTERNAL),
    rule("", "", "(min.insync.replicas)", INSYNC),
    rule("configs", "message.timestamp.difference.max.ms", "", OLD_CONFIGS),
    rule("configs", "message.format.version", "", OLD_CONFIGS),
    rule("configs", "message.downconversion.enable", "", OLD_CONFIGS),
    rule("configs", "log.flush.interval.messages", "", SYNCED),
    rule(
        "configs",
        "unknown broker config",
        "",
        "broker configs that kaas does not have are refused, not ignored",
    ),
    rule(
        "configs-broker",
        "log.retention.ms='-2'",
        "",
        "dynamic broker configs are checked like static ones",
    ),
    rule(
        "configs-broker",
        "log.flush.interval.ms='-1'",
        "",
        "dynamic broker configs are checked like static ones",
    ),
    rule("configs-broker", "producer.id.expiration.ms", "", "read at the start"),
    rule("configs-list", "kinds []", "", KINDS),
    rule("configs-describe-broker", "", "", OWN_CONFIGS),
    rule("configs-describe-errors", "type 4 name '01'", "", OWN_CONFIGS),
    rule("configs-describe-errors", "type 8", "", KINDS),
    rule("configs-describe-errors", "type 16", "", KINDS),
    rule("configs-describe-errors", "type 32", "", KINDS),
    rule("configs-alter", "metrics", "", KINDS),
    rule("configs-alter", "groups", "", KINDS),
    rule("configs-alter", "loggers", "", KINDS),
    rule("configs-list", "kinds [32]", "", KINDS),
    rule("configs-list", "kinds [8]", "", KINDS),
    rule("configs-incremental", "operation", "", EXCEPTION),
    rule("configs-incremental", "read back", "", "elements of a list are trimmed, empty ones dropped"),
    rule("configs", "delete.retention.ms=' 5 '", "value", TRIMMED),
    rule("configs", "cleanup.policy=' delete '", "", TRIMMED),
    rule("configs", "cleanup.policy='delete,delete'", "", TRIMMED),
    rule("configs", "cleanup.policy='delete,'", "", TRIMMED),
    rule("configs", "cleanup.policy=", "", "compaction is not built, and refused"),
    rule("configs", "compression.type=", "", "batches are kept as they were sent: only 'producer'"),
    rule("configs", "preallocate=", "", "files are not preallocated: only 'false'"),
    rule("configs", "segment.bytes=", "", "segments from 14 bytes, as in Kafka 3.7"),
    rule("configs", "cleanable.dirty.ratio=", "", "NaN and Java's own ways to write a number are refused"),
    rule("configs-create", "", "topic_id", IDS),
    rule("topics-create", "validate_only true", "topic_id", IDS),
    rule("configs", "", "min.insync.replicas", INSYNC),
    rule("configs", "min.insync.replicas", "", INSYNC),
    rule("configs", "threads", "", "the number of threads is fixed at the start"),
    rule(
        "topics-create-names",
        "collision inside one request",
        "",
        "names that collide are refused inside one request too",
    ),
    rule("topics-delete", "negative timeout", "", "there is no moment at which a deletion could time out"),
    rule("topics-grow", "", "error_message", SAYS_WHY),
    rule("topics-grow", "very many", "", EXCEPTION),
    rule("topics-metadata", "by zero id", "", EXCEPTION),
    rule("topics-metadata", "id and a name", "", "Kafka forgets the names when there are ids"),
    rule("topics-metadata", "creates a topic", "", AT_ONCE),
    rule("topics-metadata", "auto create of a collision", "", AT_ONCE),
    rule("topics-describe", "bad", "", EXCEPTION),
    rule("fetch-sessions", "unknown partition", "FetchableTopicResponse", "Kafka names a topic twice"),
    rule("fetch-sessions", "and again", "FetchableTopicResponse", "Kafka names a topic twice"),
    rule("wire-versions", "ApiVersions", "max_version", VERSIONS),
    rule("wire-versions", "ApiVersions", "feature", VERSIONS),
    rule("wire-garbage", "client id", "", "what cannot be a request closes the connection"),
    rule("wire-garbage", "tag repeats", "", "what cannot be a request closes the connection"),
    rule("cluster-coordinators", "type 1", "", TRANSACTIONS),
    rule("cluster-coordinators", "type 2", "", "share groups are not built"),
    rule("cluster-coordinators", "", "error_message", SAYS_WHY),
    rule("produce", "Produce", "error_message", SAYS_WHY),
    rule("produce", "Produce", "record_errors", RECORDS),
    rule("produce", "Produce", "log_start_offset", "the log start is not told beside an error"),
    rule(
        "produce-idempotent",
        "Produce",
        "log_append_time_ms",
        "a repeated batch has no append time of its own",
    ),
    rule("produce", "transactional", "error_code", TRANSACTIONS),
    rule("produce", "internal topic", "", INTERNAL),
    rule("offsets-delete-records", "internal", "", INTERNAL),
    rule("topics-create", "factor 2", "", REPLICAS),
    rule("topics-create", "factor 3", "", REPLICAS),
    rule("", "", "(flush.messages)", SYNCED),
    rule("", "", "message.downconversion.enable", OLD_CONFIGS),
    rule("", "", "message.format.version", OLD_CONFIGS),
    rule("", "", "message.timestamp.difference.max.ms", OLD_CONFIGS),
    rule(
        "",
        "",
        "(min.insync.replicas) config_source",
        "Kafka sets min.insync.replicas for the cluster when it is formatted",
    ),
    rule("fetch-limits", "", "records", "a fetch never ends inside a batch"),
    rule("fetch-limits", "partition -1", "", EXCEPTION),
    rule("fetch-limits", "all -1", "", EXCEPTION),
    rule("fetch-errors", "isolation", "", "unknown isolation levels read uncommitted"),
    rule("fetch-errors", "replica", "", "there are no followers: whoever asks is a consumer"),
    rule("fetch-errors", "twice", "", TWICE),
    rule("produce-happy", "twice", "", TWICE),
    rule("offsets", "twice", "", TWICE),
    rule("offsets-list", "unknown topic, special", "", TWICE),
    rule("offsets-list", "isolation 2", "", "unknown isolation levels read uncommitted"),
    rule("offsets-list", "isolation -1", "", "unknown isolation levels read uncommitted"),
    rule("", "no partitions", "", "a topic without partitions is answered with none, and not left out"),
    rule("produce-batches", "length huge", "", EXCEPTION),
    rule("produce-batches", "compression", "", EXCEPTION),
    rule("produce-batches", "says", "", RECORDS),
    rule("produce-batches", "count", "", RECORDS),
    rule("produce-batches", "first record", "", RECORDS),
    rule("produce-batches", "timestamp", "", RECORDS),
    rule("produce-batches", "log append time", "", "the attribute is the leader's; no client sets it"),
    rule("produce-batches", "behind", "", "bytes behind the batch are refused, not dropped"),
    rule("produce-timestamps", "only the last record", "", RECORDS),
    rule(
        "produce-limits",
        "into a segment",
        "",
        "a batch that is larger than segment.bytes gets a segment of its own",
    ),
    rule(
        "groups-admin",
        "last offset deleted",
        "",
        "a group goes with its last offset, not at the next clean-up",
    ),
    rule(
        "groups-join-errors",
        "no protocols, unknown member",
        "",
        "a refused join leaves no empty group behind",
    ),
];

/// Why this line may differ.
pub fn reason(case: &str, label: &str, line: &Line) -> Option<&'static str> {
    let rule = RULES.iter().find(|rule| {
        case.starts_with(rule.case)
            && label.contains(rule.label)
            && (line.text.contains(rule.line) || line.within.contains(rule.line))
    });
    rule.map(|rule| rule.reason)
}
