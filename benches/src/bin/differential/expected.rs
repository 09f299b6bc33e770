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

const VERSIONS: &str = "versions above those of Kafka 4.1, and features that are not built, are not advertised";
const TRANSACTIONS: &str = "transactions are not built yet, and refused";
const SAYS_WHY: &str = "kaas says why where Kafka gives a code only";
const RECORDS: &str = "records are never decoded: errors name no record, and what lies inside a batch is not checked";
const REPLICAS: &str = "any replication factor is accepted and is 1: the volume is the replica";
const INTERNAL: &str = "there are no internal topics";

const RULES: &[Rule] = &[
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
    rule("produce-idempotent", "Produce", "log_append_time_ms", "a repeated batch has no append time of its own"),
    rule("produce", "transactional", "error_code", TRANSACTIONS),
    rule("produce", "internal topic", "", INTERNAL),
    rule("offsets-delete-records", "internal", "", INTERNAL),
    rule("topics-create", "factor 2", "", REPLICAS),
    rule("topics-create", "factor 3", "", REPLICAS),
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
