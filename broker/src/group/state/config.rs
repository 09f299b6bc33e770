//! The settings of group coordination, with Kafka's names, defaults and meanings.

use thiserror::Error;

/// Settings of the group coordinator. Field names are Kafka's, with dots as underscores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupConfig {
    /// `group.initial.rebalance.delay.ms`: how long an empty group waits for more members, from 0.
    pub initial_rebalance_delay_ms: u32,
    /// `group.min.session.timeout.ms`: the smallest session timeout a member may ask for.
    pub min_session_timeout_ms: i32,
    /// `group.max.session.timeout.ms`: the largest session timeout a member may ask for.
    pub max_session_timeout_ms: i32,
    /// `group.max.size`: members a group may have, from 1.
    pub max_size: usize,
    /// How long a new member may stay in a rebalance without repeating its JoinGroup. Fixed to 5 minutes in
    /// Kafka; a field so that tests need not wait.
    pub new_member_join_timeout_ms: u32,
    /// `offset.metadata.max.bytes`: the longest metadata string of a committed offset, in UTF-16 units as in Kafka.
    pub offset_metadata_max_bytes: usize,
    /// `offsets.retention.minutes`, in milliseconds.
    pub offsets_retention_ms: i64,
    /// `offsets.retention.check.interval.ms`: how often expired offsets are looked for, from 1.
    pub offsets_retention_check_interval_ms: u64,
    /// `offsets.commit.timeout.ms`: how long a commit may wait to become durable before the client is told to
    /// retry, from 1.
    pub offsets_commit_timeout_ms: u64,
    /// `offsets.topic.num.partitions`: number of slots, from 1. May not change over the life of a data directory.
    pub slots: usize,
    /// Appends of one slot that may be on their way to the volume at a time; requests beyond it are answered
    /// with COORDINATOR_NOT_AVAILABLE, which clients retry. kaas only.
    pub max_appends_in_flight: usize,
    /// How often a slot with groups asks whether this broker still leads it, from 1: a coordinator that was paused and
    /// replaced goes on believing in its members for no longer than that. kaas only.
    pub leadership_check_interval_ms: u64,
    /// Journal entries after which a slot's state is written as a snapshot. kaas only.
    pub snapshot_after_entries: u64,
}

impl Default for GroupConfig {
    fn default() -> Self {
        Self {
            initial_rebalance_delay_ms: 3_000,
            min_session_timeout_ms: 6_000,
            max_session_timeout_ms: 1_800_000,
            max_size: usize::MAX,
            new_member_join_timeout_ms: 300_000,
            offset_metadata_max_bytes: 4_096,
            offsets_retention_ms: 7 * 24 * 60 * 60_000,
            offsets_retention_check_interval_ms: 600_000,
            offsets_commit_timeout_ms: 5_000,
            slots: 50,
            max_appends_in_flight: 10_000,
            leadership_check_interval_ms: 3_000,
            snapshot_after_entries: 10_000,
        }
    }
}

/// A setting outside its range.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{setting} is {found}: it must be {expected}")]
pub struct GroupConfigError {
    pub setting: &'static str,
    pub found: String,
    pub expected: &'static str,
}

impl GroupConfig {
    /// Checks the ranges.
    ///
    /// # Errors
    /// Names the first setting that is out of range.
    pub fn check(&self) -> Result<(), GroupConfigError> {
        let at_least_one = "at least 1";
        check("group.max.size", self.max_size, self.max_size >= 1, at_least_one)?;
        check("offsets.topic.num.partitions", self.slots, self.slots >= 1, at_least_one)?;
        check(
            "group.min.session.timeout.ms",
            self.min_session_timeout_ms,
            (0..=self.max_session_timeout_ms).contains(&self.min_session_timeout_ms),
            "at least 0 and at most group.max.session.timeout.ms",
        )?;
        check(
            "offsets.retention.minutes",
            self.offsets_retention_ms,
            self.offsets_retention_ms >= 60_000,
            "at least 1 minute",
        )?;
        check(
            "offsets.retention.check.interval.ms",
            self.offsets_retention_check_interval_ms,
            self.offsets_retention_check_interval_ms >= 1,
            at_least_one,
        )?;
        check(
            "offsets.commit.timeout.ms",
            self.offsets_commit_timeout_ms,
            self.offsets_commit_timeout_ms >= 1,
            at_least_one,
        )
    }
}

fn check(
    setting: &'static str,
    found: impl ToString,
    fine: bool,
    expected: &'static str,
) -> Result<(), GroupConfigError> {
    if fine { Ok(()) } else { Err(GroupConfigError { setting, found: found.to_string(), expected }) }
}
