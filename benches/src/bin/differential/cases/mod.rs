//! The sequences of requests. A case is deterministic: what it sends may depend on earlier answers only through ids.

mod cluster;
mod configs;
mod fetch;
mod groups;
mod offsets;
mod produce;
mod topics;
mod wire;

use super::side::Side;

/// A sequence of requests.
pub type Case = fn(&mut Side);

/// Every case and its name.
pub const ALL: &[(&str, Case)] = &[
    ("wire-versions", wire::versions),
    ("wire-unserved", wire::unserved),
    ("wire-garbage", wire::garbage),
    ("cluster-describe", cluster::describe),
    ("cluster-coordinators", cluster::coordinators),
    ("cluster-log-dirs", cluster::log_dirs),
    ("topics-create", topics::create),
    ("topics-create-names", topics::names),
    ("topics-create-assignments", topics::assignments),
    ("topics-create-duplicates", topics::duplicates),
    ("topics-delete", topics::delete),
    ("topics-grow", topics::grow),
    ("topics-metadata", topics::metadata),
    ("topics-describe", topics::describe_partitions),
    ("configs-values", configs::values),
    ("configs-create", configs::create_with),
    ("configs-describe-topic", configs::describe_topic),
    ("configs-describe-broker", configs::describe_broker),
    ("configs-describe-errors", configs::describe_errors),
    ("configs-alter", configs::alter),
    ("configs-incremental", configs::incremental),
    ("configs-broker", configs::broker),
    ("configs-list", configs::list),
    ("produce-happy", produce::happy),
    ("produce-errors", produce::errors),
    ("produce-batches", produce::batches),
    ("produce-old-formats", produce::old_formats),
    ("produce-limits", produce::limits),
    ("produce-timestamps", produce::timestamps),
    ("produce-idempotent", produce::idempotent),
    ("produce-acks-0", produce::acks_0),
    ("produce-init", produce::init_producer_id),
    ("fetch-happy", fetch::happy),
    ("fetch-errors", fetch::errors),
    ("fetch-limits", fetch::limits),
    ("fetch-epochs", fetch::epochs),
    ("fetch-sessions", fetch::sessions),
    ("offsets-list", offsets::list),
    ("offsets-epochs", offsets::for_leader_epoch),
    ("offsets-delete-records", offsets::delete_records),
    ("groups-join-errors", groups::join_errors),
    ("groups-one-member", groups::one_member),
    ("groups-unknown", groups::unknown),
    ("groups-static", groups::static_members),
    ("groups-commit-simple", groups::commit_simple),
    ("groups-commit-member", groups::commit_member),
    ("groups-fetch", groups::fetch_offsets),
    ("groups-two-members", groups::two_members),
    ("groups-admin", groups::admin),
    ("groups-leave", groups::leave),
];
