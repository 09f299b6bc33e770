//! What can be wrong with an index, or with an entry that is to be added to it.

/// An index that cannot be trusted, or an entry that does not fit. Indexes are derived from the log: whoever gets
/// one of these on loading rebuilds the index, in whole or behind the entries that are good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    #[error("entry {entry} of the {kind} index does not follow its predecessor")]
    Disorder { kind: &'static str, entry: usize },
    #[error("entry {entry} of the {kind} index is impossible")]
    Impossible { kind: &'static str, entry: usize },
    #[error("the {kind} index is padded with zeros from entry {entry} on")]
    ZeroPadding { kind: &'static str, entry: usize },
    #[error("the {kind} index ends with {trailing} bytes of an entry")]
    TruncatedEntry { kind: &'static str, trailing: usize },
    #[error("entry {entry} of the transaction index has version {found}, only {supported} is known")]
    Version { entry: usize, found: i16, supported: i16 },
    #[error("offset {offset} does not fit a segment that begins at {base_offset}")]
    OffsetOutOfRange { base_offset: i64, offset: i64 },
    #[error("position {position} does not fit an offset index (up to 2 GiB)")]
    PositionOutOfRange { position: u64 },
}

/// Entries that were read, and what stopped the reading before the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix<T> {
    /// The entries in front of the damage.
    pub index: T,
    /// `None` if all of the file is good.
    pub damage: Option<IndexError>,
}
