//! `kaas-engine verify` against damage of every kind of file: flipped bits, and files that are missing, empty, cut, renamed,
//! there twice, there with rubbish in them, or a directory. Each must be found, and named, or be proven to be of no use to
//! anybody.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]

#[path = "support/compacting.rs"]
mod compacting;
#[path = "support/data.rs"]
mod data;
#[path = "support/looking.rs"]
mod looking;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use compacting::compacted;
use data::Data;
use kaas_engine::verify::{Kind, Report};
use looking::{change, closed, counted, crashed, dir, look};
use support::Volume;

/// What is found, by kind and file.
fn found(report: &Report) -> BTreeSet<(Kind, PathBuf)> {
    report.findings.iter().map(|finding| (finding.kind, finding.file.clone())).collect()
}

fn names(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    let mut names: Vec<_> = files.map(|entry| entry.path()).collect();
    names.sort();
    names
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

/// The bytes of a file that nothing depends on.
fn unused(path: &Path, bytes: &[u8], counted: u64) -> BTreeSet<usize> {
    let name = name(path);
    let is_index = ["index", "timeindex", "txnindex"].iter().any(|end| name.ends_with(end));
    if name == "lock" || name == "lock-holder.json" {
        // For the message to whoever starts a second broker.
        (0..bytes.len()).collect()
    } else if name.starts_with("claim.") {
        // The time of a claim is for people only.
        let field = b"\"claimed_at_ms\":";
        let at = bytes.windows(field.len()).position(|window| window == field).unwrap() + field.len();
        (at..bytes.len()).take_while(|at| bytes[*at].is_ascii_digit()).collect()
    } else if name.ends_with(".log") || is_index || counted == 0 {
        (counted as usize..bytes.len()).collect()
    } else {
        BTreeSet::new()
    }
}

/// Flips one bit in each of about `most` bytes of a file: a finding about that file more, or other than before.
fn flip(path: &Path, root: &Path, counted: u64, most: usize, look: impl Fn() -> Report) -> usize {
    let before = found(&look());
    let kept = std::fs::read(path).unwrap();
    let unused = unused(path, &kept, counted);
    let file = path.strip_prefix(root).unwrap();
    let stride = kept.len().div_ceil(most).max(1);
    let mut flips = 0;
    for at in (0..kept.len()).step_by(stride) {
        change(path, |bytes| bytes[at] ^= 1 << (at % 8));
        let now = found(&look());
        let new: Vec<_> = now.difference(&before).collect();
        let named = new.iter().any(|(_, found)| found == file || file.parent() == Some(found));
        assert!(
            named || unused.contains(&at),
            "bit {} of byte {at} of {}: {new:?}\n{}",
            at % 8,
            file.display(),
            String::from_utf8_lossy(&kept)
        );
        std::fs::write(path, &kept).unwrap();
        flips += 1;
    }
    assert_eq!(found(&look()), before, "{} put back", file.display());
    flips
}

/// Whether a file is an older version, or a producer snapshot that nothing refers to: the next leader removes it.
fn is_history(path: &Path) -> bool {
    let dir = path.parent().unwrap();
    let newest = |kind: &str| {
        let newest = names(dir).into_iter().rfind(|path| name(path).starts_with(kind));
        newest.map(|path| (std::fs::read_to_string(&path).unwrap(), path))
    };
    let [manifest, checkpoint] = ["manifest.", "recovery-checkpoint."].map(newest);
    let referred = |found: &Option<(String, PathBuf)>| {
        let (json, _) = found.as_ref()?;
        let value: serde_json::Value = serde_json::from_str(json).ok()?;
        let state = &value["producer_state"];
        Some(format!("producer-state.{:08x}.{}.snapshot", state["epoch"].as_u64()?, state["number"]))
    };
    let name = name(path);
    let is_newest =
        |found: &Option<(String, PathBuf)>| found.as_ref().is_some_and(|(_, newest)| newest == path);
    (name.starts_with("producer-state")
        && ![referred(&manifest), referred(&checkpoint)].contains(&Some(name.into())))
        || (name.starts_with("manifest.") && !is_newest(&manifest))
        || (name.starts_with("recovery-checkpoint.") && !is_newest(&checkpoint))
}

/// How many bytes of each file of a partition count.
fn counts(volume: &Volume, path: &Path) -> u64 {
    if is_history(path) {
        return 0;
    }
    let logs = counted(volume);
    if let Some((_, bytes)) = logs.iter().find(|(log, _)| log == path) {
        return *bytes;
    }
    std::fs::metadata(path).unwrap().len()
}

/// A partition with rewritten segments.
fn rewritten() -> Volume {
    let volume = compacted(Volume::local());
    let log = volume.open();
    for n in 0..12 {
        log.put(&format!("key-{}", n % 5), &format!("value-{n}"));
    }
    log.roll();
    log.partition.compact_now().unwrap();
    log.put("key-1", "behind");
    log.close();
    let (rewritten, _) = looking::files(&volume, "", ".log")
        .into_iter()
        .partition::<Vec<_>, _>(|path| name(path).len() > "00000001-00000000000000000000.log".len());
    assert!(!rewritten.is_empty());
    looking::assert_clean(&volume, "rewritten");
    volume
}

const PARTITIONS: [fn() -> Volume; 3] = [closed, crashed, rewritten];

/// The directories around the partitions, with files of every kind in them.
const AROUND: [&str; 5] =
    ["cluster", "cluster/controller", "topics/orders", "topics/orders/0", "slots/groups/07"];

/// What kind of file a name is.
fn kind_of(path: &Path) -> String {
    let name = name(path);
    let end = name.rsplit('.').next().unwrap();
    let start = name.split('.').next().unwrap();
    if ["log", "index", "timeindex", "txnindex"].contains(&end) {
        // Rewritten ones have a generation in their names.
        format!("{}{end}", if start.len() > 29 { "rewritten " } else { "" })
    } else {
        start.to_owned()
    }
}

/// The last file of each kind that has anything in it.
fn of_each_kind(dir: &Path) -> BTreeMap<String, PathBuf> {
    let files = names(dir).into_iter().filter(|path| std::fs::metadata(path).unwrap().len() > 0);
    files.map(|path| (kind_of(&path), path)).collect()
}

#[test]
fn a_flipped_bit_in_any_file_of_a_partition() {
    for make in PARTITIONS {
        let volume = make();
        for path in names(&dir(&volume)) {
            flip(&path, volume.path(), counts(&volume, &path), 10, || look(&volume));
        }
    }
}

#[test]
fn a_flipped_bit_in_any_byte_of_a_file_of_each_kind_in_a_partition() {
    let mut kinds = BTreeSet::new();
    for make in PARTITIONS {
        let volume = make();
        for (kind, path) in of_each_kind(&dir(&volume)) {
            if kinds.insert(kind) {
                flip(&path, volume.path(), counts(&volume, &path), usize::MAX, || look(&volume));
            }
        }
    }
    let all = [
        "claim",
        "fence",
        "index",
        "log",
        "manifest",
        "partition",
        "producer-state",
        "recovery-checkpoint",
        "rewritten index",
        "rewritten log",
        "rewritten timeindex",
        "timeindex",
        "txnindex",
    ];
    assert_eq!(kinds.iter().map(String::as_str).collect::<Vec<_>>(), all);
}

#[test]
fn a_flipped_bit_in_any_byte_around_the_partitions() {
    let data = Data::with_snapshot();
    let mut kinds = BTreeSet::new();
    for target in AROUND {
        for (kind, path) in of_each_kind(&data.path(target)) {
            let bytes = std::fs::metadata(&path).unwrap().len();
            flip(&path, data.root(), bytes, usize::MAX, || data.verify(target));
            kinds.insert(kind);
        }
    }
    for kind in ["meta", "broker-configs", "producer-ids", "topic-id", "config", "journal", "snapshot"] {
        assert!(kinds.contains(kind), "{kind}");
    }
}

// Whole files.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Harm {
    Missing,
    Empty,
    Cut,
    Renamed,
    Twice,
    /// Rubbish under another name of the kind.
    Extra,
    /// A directory in its place.
    Directory,
}

const HARMS: [Harm; 7] =
    [Harm::Missing, Harm::Empty, Harm::Cut, Harm::Renamed, Harm::Twice, Harm::Extra, Harm::Directory];

/// Another name of the same kind, of a later version, epoch, offset or number.
fn another_name(name: &str) -> String {
    let next = |text: &str, radix: u32| u64::from_str_radix(text, radix).unwrap() + 3;
    let parts: Vec<&str> = name.split('.').collect();
    match parts[..] {
        ["claim", epoch] => format!("claim.{:08x}", next(epoch, 16)),
        [kind, epoch, number, end] => format!("{kind}.{epoch}.{}.{end}", next(number, 10)),
        [segment, end] if segment.len() == 29 => {
            let (epoch, base) = segment.split_once('-').unwrap();
            format!("{epoch}-{:020}.{end}", next(base, 10))
        }
        [segment, end] if segment.len() == 38 => {
            let (segment, generation) = segment.rsplit_once('-').unwrap();
            format!("{segment}-{:08x}.{end}", next(generation, 16))
        }
        _ => format!("{name}.bak"),
    }
}

impl Harm {
    fn to(self, path: &Path) {
        let bytes = std::fs::read(path).unwrap();
        let other = path.with_file_name(another_name(name(path)));
        match self {
            Self::Missing => std::fs::remove_file(path).unwrap(),
            Self::Empty => std::fs::write(path, b"").unwrap(),
            Self::Cut => std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap(),
            Self::Renamed => std::fs::rename(path, other).unwrap(),
            Self::Twice => drop(std::fs::copy(path, other).unwrap()),
            Self::Extra => std::fs::write(other, b"rubbish").unwrap(),
            Self::Directory => {
                std::fs::remove_file(path).unwrap();
                std::fs::create_dir(path).unwrap();
            }
        }
    }

    /// What nobody can see, or needs to: with the reason.
    fn is_nothing(self, path: &Path, newest: bool) -> Option<&'static str> {
        let name = name(path);
        if name.starts_with("lock") {
            return Some("the lock is made anew, its holder is for people");
        }
        if is_history(path) {
            return Some("the next leader removes it");
        }
        match self {
            Self::Twice | Self::Extra
                if ["producer-state", "snapshot"].iter().any(|kind| name.starts_with(kind)) =>
            {
                Some("nothing refers to the second one")
            }
            Self::Missing if name.starts_with("recovery-checkpoint") => Some("a scan begins further back"),
            Self::Missing if name.starts_with("config") || name.starts_with("broker-configs") => {
                Some("a topic or broker without configs looks the same")
            }
            Self::Renamed | Self::Twice if newest && versioned(name) => {
                Some("a higher number of the same epoch and content is the same version")
            }
            Self::Missing if name.starts_with("producer-ids") => {
                Some("nobody has used an id: the log says if anybody has")
            }
            _ => None,
        }
    }
}

fn versioned(name: &str) -> bool {
    ["manifest", "recovery-checkpoint", "config", "broker-configs", "producer-ids"]
        .iter()
        .any(|kind| name.strip_prefix(kind).is_some_and(|rest| rest.starts_with('.')))
}

/// Does every harm to every file of a directory.
fn harm(at: &Path, root: &Path, look: impl Fn() -> Report) {
    let before = found(&look());
    let files = names(at);
    for (index, path) in files.iter().enumerate() {
        let bytes = std::fs::read(path).unwrap();
        let stem = |path: &Path| name(path).split('.').next().unwrap().to_owned();
        let newest = files.get(index + 1).is_none_or(|next| stem(next) != stem(path));
        for harm in HARMS {
            if bytes.is_empty() && matches!(harm, Harm::Empty | Harm::Cut) {
                continue;
            }
            harm.to(path);
            let now = found(&look());
            let harmless = harm.is_nothing(path, newest);
            if harmless.is_none() {
                assert_ne!(now, before, "{harm:?} of {}", path.display());
                let other = path.with_file_name(another_name(name(path)));
                let named = now.difference(&before).any(|(_, file)| {
                    let file = root.join(file);
                    // Without its journal it is the snapshot that makes no sense.
                    let of_journal = name(path).starts_with("journal") && name(&file).starts_with("snapshot");
                    file == *path || file == other || file == at || of_journal
                });
                assert!(named || now.len() < before.len(), "{harm:?} of {}: {now:?}", path.display());
            }
            let _ = std::fs::remove_file(path.with_file_name(another_name(name(path))));
            if harm == Harm::Directory {
                std::fs::remove_dir(path).unwrap();
            }
            std::fs::write(path, &bytes).unwrap();
        }
        assert_eq!(found(&look()), before, "{} put back", path.display());
    }
}

#[test]
fn files_of_a_partition_that_are_missing_empty_cut_renamed_there_twice_or_rubbish() {
    for make in PARTITIONS {
        let volume = make();
        harm(&dir(&volume), volume.path(), || look(&volume));
    }
}

#[test]
fn files_around_the_partitions_that_are_missing_empty_cut_renamed_there_twice_or_rubbish() {
    let data = Data::with_snapshot();
    for target in AROUND {
        harm(&data.path(target), data.root(), || data.verify(target));
    }
}
