//! What verify finds, how bad it is, and what to do about it.
//!
//! Every kind of finding has a stable code (kebab-case in JSON), one severity, and two sentences for whoever reads
//! it at night: what it means, and what to do. The `problem` of a finding is the particular case.

use std::path::{Path, PathBuf};

use serde::Serialize;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be, or what the next leader clears away by itself.
    Info,
    /// No committed record is missing: derived data is wrong, or something does not belong there.
    Warning,
    /// Records are lost or unreadable, or the partition cannot be opened.
    Error,
}

impl Severity {
    /// As it is shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

macro_rules! kinds {
    ($($name:ident $severity:ident $meaning:literal $action:literal;)*) => {
        /// What kind of finding.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum Kind {
            $(#[doc = $meaning] $name,)*
        }

        impl Kind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// How bad findings of this kind are.
            pub fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity,)* }
            }

            /// What it means.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$name => $meaning,)* }
            }

            /// What to do.
            pub fn action(self) -> &'static str {
                match self { $(Self::$name => $action,)* }
            }
        }
    };
}

kinds! {
    // Records.
    DamagedBatch Error
        "Records that count cannot be read. Consumers get an error where a batch's header is damaged; elsewhere the batch as it is, with a checksum that is theirs to check."
        "Copy the directory; restore the file from a backup or snapshot of the volume, or repair: all but these offsets is kept.";
    OutOfSequence Error
        "A batch stands where its offset or leader epoch does not belong; offsets here cannot be trusted."
        "Copy the directory; repair: where the batches around leave no choice, the batch gets its offset and epoch back.";
    ShortSegment Error
        "Committed records at the end of the segment are gone."
        "Look for the cause on the volume (it cut off synced bytes); restore the file, or repair: what is left is kept.";
    ForeignSegment Error
        "The segment is whole, and not the one that was written under its name: it may be another partition's. What is read from it are other records."
        "Keep the partition closed; find the segment that was here and put it back. Or repair with --accept-loss: it goes to quarantine/, and the records that were here are lost.";
    MissingSegment Error
        "All records of the segment are gone, and the partition cannot be opened."
        "Restore the file from a backup or snapshot of the volume, or repair: the other segments are kept.";
    WrongEnd Error
        "The manifest and the segment disagree about where the segment ends; the records around it are in doubt."
        "Copy the directory; restore the manifest or the segment, or repair: the segment's batches decide.";
    DamagedTail Error
        "The next leader ends the log here and drops whole batches behind it. They may have been acknowledged, unless a loss of power cut off their write."
        "After a loss of power, on a volume that keeps what was synced: nothing. If a broker leads here, stop it with SIGTERM, never with SIGKILL, and run this again. Else keep the partition closed; copy the directory; restore the segment, or repair: the batches behind are kept.";
    CommittedRecordsMissing Error
        "Records that were committed are not there any more."
        "Look for the cause on the volume (it lost synced bytes); restore the files, or repair: their offsets are not used again.";
    SegmentsDoNotFollow Error
        "The segments leave a gap or overlap, and the partition cannot be opened."
        "Find out which segment is missing or foreign; restore the directory, or repair: what follows is kept.";
    SegmentWithoutManifest Error
        "The leader that wrote the segment also wrote a manifest, which is gone; the partition cannot be opened."
        "Restore the manifest from a backup or snapshot, or repair: the segments' names decide.";
    TornTail Warning
        "What a crash left of a last write. It was never acknowledged, unless the volume has lost synced bytes."
        "Nothing: the next leader goes on in front of it.";
    SegmentBehindRelease Warning
        "The records in this segment do not count: its leader had said so, as when a write found the volume full."
        "Nothing, if the volume was full then: the next leader removes it. Else repair, which keeps a copy, and tell the maintainers.";
    DeadBytes Info
        "Bytes behind what counts, of a deposed leader or of a write that failed; never served."
        "Nothing: they go with the segment.";
    DeadSegment Info
        "No later leader needs it: a crash left it, or a deposed leader wrote it."
        "Nothing: the leader removes it.";
    EmptySegment Info
        "Created and never written to."
        "Nothing: the next leader removes it.";

    // What says which bytes count.
    ManifestMissing Error
        "Nothing says which records count, and the partition cannot be opened."
        "Restore the manifest from a backup or snapshot, or repair: the segments' names decide.";
    ManifestDamaged Error
        "Nothing says which records count, and the partition cannot be opened."
        "Restore the manifest from a backup or snapshot, or repair: the segments' names decide. Do not delete it.";
    ManifestImpossible Error
        "The manifest contradicts itself; the partition cannot be opened, or serves wrong offsets."
        "Restore the manifest from a backup or snapshot, or repair: the segments' names decide. Do not delete it.";
    ManifestSummary Warning
        "Retention by time and lookups by time may choose wrongly for this segment. The records are in order."
        "Repair: the segment is read anew. Tell the maintainers.";
    LogStartOutOfRange Error
        "The log start offset lies outside of the log: records are missing, or the partition cannot be opened."
        "Restore the directory from a backup or snapshot, or repair: the log starts where its records do.";
    NewerFormat Error
        "A newer version of kaas wrote it; this one cannot judge it, nor open it."
        "Use the newer version.";
    NeverServed Info
        "It was claimed, but no leader has come far enough to write anything."
        "Nothing.";
    CheckpointDamaged Warning
        "An open after a crash begins its scan further back. The records are in order."
        "Nothing, or repair, which takes it out of the way.";
    CheckpointWrong Error
        "An open after a crash would begin its scan in the wrong place and cut the log off there."
        "Repair, with the partition closed: the next open needs no checkpoint then.";
    CheckpointUnused Warning
        "It cannot be read, but nothing needs it."
        "Nothing: the leader removes it.";

    // Producers.
    SnapshotMissing Error
        "The partition cannot be opened. The records are in order; what is missing is what recognises retries."
        "Restore the file from a backup or snapshot, or repair: it is built from the batches that are left.";
    SnapshotDamaged Error
        "The partition cannot be opened. The records are in order; what is damaged is what recognises retries."
        "Restore the file from a backup or snapshot, or repair: it is built from the batches that are left.";
    SnapshotDiffers Warning
        "A producer's retry may be taken for new, or a new batch refused, after the next open."
        "Repair: it is built from the batches. Tell the maintainers; the records themselves are whole.";
    ProducersNotCompared Info
        "The producer snapshots could not be compared with the log."
        "Nothing.";

    // Indexes.
    IndexMissing Warning
        "Derived data is gone; the leader walks through the log instead, and lookups are slower."
        "Nothing, or repair: it is built from the log.";
    IndexDamaged Warning
        "Derived data cannot be read; the leader walks through the log instead, and lookups are slower."
        "Nothing, or repair: it is built from the log.";
    IndexWrong Warning
        "Lookups by offset or by time may fail or answer wrongly. The records are in order."
        "Repair: it is built from the log.";
    TxnIndexWrong Error
        "Consumers with read_committed may see aborted records, or miss committed ones. The records are in order."
        "Repair: it is built from the log.";
    OrphanIndex Info
        "Its segment is gone."
        "Nothing: the leader removes it.";

    // Who leads.
    FenceMissing Error
        "Nobody can lead, and what is here cannot be opened."
        "Do not create the file by hand. Stop every broker that may have led here; restore the directory, or repair with --brokers-stopped.";
    FenceDamaged Error
        "The leader cannot tell whether it still leads, and stops serving."
        "Repair, or restart the broker: a claim of a higher epoch heals the record.";
    FenceRecordTorn Warning
        "Whoever claimed this epoch stopped in the middle of it. Nobody leads at it, and a leader of a lower one cannot tell whether it still leads."
        "Nothing where a leader is still to come: its claim heals the record. Else repair, or restart the broker.";
    FenceRecordDamaged Warning
        "An old epoch's record is damaged. Whoever leads is not concerned."
        "Nothing, or repair: the record is written anew.";
    FenceGap Error
        "A deposed leader that asks this record would believe that it still leads."
        "Stop every broker that may have led this partition, then repair: the records are filled.";
    FenceBehind Error
        "The fence has lost records: an old leader may believe that it still leads."
        "Stop every broker that may have led this partition, then repair: it is led at an epoch above all that were.";
    EpochOutOfReach Error
        "It has an epoch that no leader can have come to. Claims go on above every epoch that was used; above this one they are refused, and nobody can lead."
        "Find out how it came here. A fence: stop every broker that may have led here, move it out of the data directory, and repair with --brokers-stopped. Another file: move it out of the data directory. Then run this again.";
    FenceShort Warning
        "The fence has not the length that its leader gave it."
        "Nothing: the next claim extends it.";
    TakenAway Error
        "The fence says that the topic is being deleted, and nobody can claim it any more; but it is in its place."
        "Repair: the mark is taken back, since a topic that is deleted is not under its name any more. What is renamed aside the broker's start deals with.";
    ClaimDamaged Warning
        "The claim file cannot be read; whoever made it is gone, or the volume lost it."
        "Nothing: a higher epoch is claimed.";
    ClaimOutOfReach Warning
        "No claim can have come to this epoch, so no broker made it; everybody passes over it."
        "Find out whose it is; move it out of the data directory, or repair: it goes to quarantine/.";
    ClaimDisagrees Error
        "The claim file and the fence name different owners of one epoch: two brokers may both think they lead."
        "Stop both brokers, then start one: it claims a higher epoch. Tell the maintainers.";
    ClaimMissing Warning
        "The claim file of the highest epoch is gone; its fence record still protects it."
        "Nothing: the next claim writes one.";
    ClaimUnfinished Info
        "Somebody began to claim this epoch and did not come to its end, or is doing so now."
        "Nothing: the next claim goes on above it.";

    // Whose directory it is.
    IdentityMissing Error
        "Nothing says which partition the directory belongs to, and it cannot be opened."
        "Restore partition.json, or repair: it is written as the topic's directory says.";
    IdentityDamaged Error
        "Nothing says which partition the directory belongs to, and it cannot be opened."
        "Restore partition.json, or repair: it is written as the topic's directory says.";
    ForeignDirectory Error
        "The directory belongs to another partition, or to a former topic of that name; it is not served."
        "Find out how it came here; move it to where it belongs.";
    ForeignFile Error
        "The file belongs to another partition or slot. It is never believed, and may have taken the place of the one that counts."
        "Find out how it came here; restore the file that was here, or repair: it goes to quarantine/, and what is left of this one's own decides.";

    // Topics and what is around them.
    TopicIdMissing Error
        "The directory is not served as a topic."
        "Repair: the topic's partitions say the id. Or restore topic-id.json; or move the directory out of the data directory if it is no topic.";
    TopicIdDamaged Error
        "The topic is left out by the broker, and its name stays taken."
        "Repair: the topic's partitions say the id. Or restore topic-id.json from a backup or snapshot of the volume.";
    TopicConfigDamaged Error
        "The topic is left out by the broker, and its name stays taken."
        "Restore the file from a backup or snapshot; or repair with --accept-loss: the configs go back to an older version, or to the defaults.";
    PartitionMissing Error
        "All records of the partition are gone, and the topic is left out by the broker."
        "Restore the partition's directory from a backup or snapshot of the volume.";
    ClusterMetaDamaged Error
        "The broker does not start."
        "Restore cluster/meta.json from a backup or snapshot of the volume. Nothing else says which cluster it is, so a repair leaves it.";
    SettingsDamaged Error
        "The broker does not start."
        "Restore the file, or repair: producer ids go on above all that were handed out; broker configs go back only with --accept-loss.";
    ProducerIdsBehind Error
        "Producer ids that are in use will be handed out again; a batch may then be taken for another producer's retry."
        "Stop the broker and repair: producer ids go on above all that were handed out.";
    JournalDamaged Error
        "Acknowledged entries (committed offsets, transaction states) cannot be read; the slot cannot be opened."
        "Copy the directory before anything else; restore it from a backup or snapshot, or repair with --accept-loss: what can be read is kept.";

    // What lies about.
    UnknownFile Warning
        "kaas did not make it, or under another name."
        "Find out whose it is; move it out of the data directory. In partitions, topics, slots and cluster/ a repair moves files to quarantine/.";
    KnownStray Info
        "Not of kaas, and in nobody's way: its name tells what made it."
        "Nothing; or have whatever makes it keep out of the data directory.";
    UnknownDirectory Warning
        "It is no topic, and nothing in it has a name of records. The broker leaves it out, and its name cannot become a topic's."
        "Move it out of the data directory. If it was a topic, everything that it had is gone: restore it from a backup or snapshot of the volume.";
    WrongType Error
        "kaas makes files and directories only; it follows no link and opens nothing else, so what it looks for here is not there."
        "Put the file or directory itself in its place (for a link: what it leads to), then run this again. Nothing around it is repaired before.";
    Temporary Info
        "A file that was being written when its writer stopped, or is being written now."
        "Nothing: the leader removes it.";
    Replaced Info
        "A newer version of the file counts."
        "Nothing: the leader removes it.";
    Unfinished Info
        "A topic or partition that was being created, or is being created now."
        "Nothing: the controller removes what is left over.";
    Deleted Info
        "A deleted topic whose files are being removed."
        "Nothing: the controller goes on with it.";

    Quarantine Info
        "What a repair could not read, or what did not belong here; nobody looks at it."
        "Keep it until you know that nothing of it is missing; then remove the directory.";
    NoChecksum Info
        "An earlier version of kaas wrote it, or a person; damage that leaves it readable cannot be found."
        "Nothing: the next version of the file has one.";

    // The check itself.
    Unreadable Error
        "The volume gave an error; what is in the file is not known."
        "Check the volume, the kernel's log, and who may read the file; then run this again.";
    InProgress Info
        "A leader is at work here, and this changed while it was looked at."
        "Nothing; run this again for a second look.";
    NotShown Warning
        "More was found in this directory than is listed."
        "Deal with what is listed first, then run this again.";
}

impl Kind {
    /// The stable code, as in JSON.
    pub fn code(self) -> String {
        let name = format!("{self:?}");
        let mut code = String::with_capacity(name.len() + 4);
        for (at, letter) in name.chars().enumerate() {
            if letter.is_ascii_uppercase() && at > 0 {
                code.push('-');
            }
            code.push(letter.to_ascii_lowercase());
        }
        code
    }
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub severity: Severity,
    #[serde(rename = "code")]
    pub kind: Kind,
    /// The file or directory, relative to the volume's root.
    #[serde(serialize_with = "crate::printable::serialize_path")]
    pub file: PathBuf,
    /// Byte in the file, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// Offset of a record, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<i64>,
    /// What is wrong.
    pub problem: String,
    /// What it means.
    pub meaning: &'static str,
    /// What to do.
    pub action: &'static str,
    /// Whether a live leader's work may have looked like this: the partition is then looked at again.
    #[serde(skip)]
    pub(super) racy: bool,
}

impl Finding {
    /// A finding about `file`.
    pub(super) fn new(kind: Kind, file: &Path, problem: impl Into<String>) -> Self {
        Self {
            severity: kind.severity(),
            kind,
            file: file.to_owned(),
            position: None,
            offset: None,
            problem: problem.into(),
            meaning: kind.meaning(),
            action: kind.action(),
            racy: true,
        }
    }

    /// Whether a repair looks into it: an error or a warning.
    pub(super) fn is_bad(&self) -> bool {
        self.severity > Severity::Info
    }

    pub(super) fn at(mut self, position: u64) -> Self {
        self.position = Some(position);
        self
    }

    pub(super) fn offset(mut self, offset: crate::types::Offset) -> Self {
        self.offset = Some(offset.0);
        self
    }

    /// About bytes that nobody changes any more: a second look would say the same.
    pub(super) fn certain(mut self) -> Self {
        self.racy = false;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_json_and_texts_are_sentences() {
        for kind in Kind::ALL {
            let json = serde_json::to_string(kind).unwrap();
            assert_eq!(json, format!("\"{}\"", kind.code()));
            assert!(kind.meaning().ends_with('.') && kind.action().ends_with('.'), "{kind:?}");
        }
        assert_eq!(Kind::DamagedBatch.code(), "damaged-batch");
    }
}
