//! A directory on NFS, version 4.1 or later, mounted `hard` by Linux's client.
//!
//! What the client may answer from memory, and what is done about it (figures: Linux 6.1, default mounts):
//!
//! - *Names.* One that was looked up too early stays "not found" for 30 s, for open too: it is looked up again after its
//!   directory was read. A name that was renamed over on another host may lead to the old file for seconds, so files that
//!   are rewritten get new names (see the engine), and nobody asks who leads by opening a name.
//! - *Lengths.* `fstat` lags 3 s: lengths are asked for with `AT_STATX_FORCE_SYNC`.
//! - *Bytes.* Records and whatever a new leader scans are read with `O_DIRECT`, which asks the server. Other reads rely on
//!   close-to-open, hence no `nocto`: what was synced before a file was opened is seen.
//! - *Delegations.* A server gives one with a read-only open, newer ones with a writing open too, and takes it back from a
//!   host that is cut off only after a lease time (90 s), in which everybody waits who wants to write, rename or unlink the
//!   file. The client asks for none when it opens with `O_DIRECT`. So every open does, and where the cache is wanted the flag
//!   is taken off again: it is one of the descriptor, the delegation one of the open.
//!
//! What the server has: every change of names is durable when it is answered (RFC 8881, unless it is exported `async`, which
//! lies). Bytes are durable once *their client* has committed them: see [`Adoption::Rewrite`]. The pages of a host that was
//! cut off may arrive minutes late, in the file that they were written to, whatever its name is by then.
//!
//! A write error shows at the sync or at a later write, is told once, and is final for the file. An advisory lock covers
//! the whole file on the server; that of a host which is cut off is given up after a lease time.

use std::path::Path;

use crate::posix::{Mounted, Rules};
use crate::recognise::Refusal;
use crate::{Adoption, Kind, Result, Sharing};

const RULES: Rules = Rules {
    kind: Kind::Nfs,
    sharing: Sharing::ManyHosts,
    adoption: Adoption::Rewrite,
    shared: true,
    delegations: true,
    checked_cache: true,
};

/// Volumes on NFS; see the module.
#[derive(Debug)]
pub struct Nfs;

impl Nfs {
    /// Opens an existing directory. The mount's options are not looked at: [`crate::recognise::open`] does.
    pub fn open(root: &Path) -> Result<Mounted> {
        Mounted::open_root(root, RULES)
    }
}

/// Whether a mount with these options keeps what kaas needs.
pub(crate) fn check(options: &[String]) -> std::result::Result<(), Refusal> {
    let value = |name: &str| {
        options
            .iter()
            .find_map(|option| option.split_once('=').filter(|(key, _)| *key == name))
            .map(|(_, v)| v)
    };
    let refuse = |reason: String, remedy: &'static str| Err(Refusal { reason, remedy });
    match version(value("vers"), value("minorversion")) {
        Some(version) if version >= (4, 1) => {}
        Some((major, minor)) => {
            let shown = if major < 4 { major.to_string() } else { format!("{major}.{minor}") };
            return refuse(
                format!(
                    "it is mounted with NFS version {shown}, whose locks, opens and retries are not exact"
                ),
                "mount it with vers=4.1 or vers=4.2",
            );
        }
        None => {
            return refuse(
                "the mount table (/proc/self/mountinfo) does not say how it is mounted".to_owned(),
                "make /proc visible, or say that it is NFS, version 4.1 or later and hard: --substrate nfs",
            );
        }
    }
    for option in options {
        match option.as_str() {
            "soft" | "softerr" => {
                return refuse(
                    format!(
                        "it is mounted {option}: when the server is slow, writes fail that may still be done"
                    ),
                    "mount it with hard",
                );
            }
            "softreval" => {
                return refuse(
                    "it is mounted softreval: when the server is slow, names and lengths are old ones"
                        .to_owned(),
                    "mount it with nosoftreval",
                );
            }
            "nocto" => {
                return refuse(
                    "it is mounted nocto: an opened file may show what was in it before".to_owned(),
                    "mount it without nocto",
                );
            }
            _ => {}
        }
    }
    match value("local_lock") {
        None | Some("none") => Ok(()),
        Some(locks) => refuse(
            format!("it is mounted local_lock={locks}: locks do not keep brokers on other hosts out"),
            "mount it with local_lock=none",
        ),
    }
}

fn version(vers: Option<&str>, minor: Option<&str>) -> Option<(u32, u32)> {
    let (major, point) = vers?.split_once('.').map_or((vers?, None), |(major, point)| (major, Some(point)));
    Some((major.parse().ok()?, point.or(minor).unwrap_or("0").parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "rw,relatime,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,hard,proto=tcp,timeo=600,retrans=2,\
                        sec=sys,clientaddr=10.0.0.2,local_lock=none,addr=10.0.0.1";

    fn checked(options: &str) -> std::result::Result<(), Refusal> {
        let options: Vec<_> = options.split(',').map(str::to_owned).collect();
        check(&options)
    }

    #[test]
    fn mounts_that_keep_their_word_are_taken() {
        checked(GOOD).unwrap();
        checked(&GOOD.replace("4.2", "4.1")).unwrap();
        checked(&GOOD.replace("vers=4.2", "vers=4,minorversion=1")).unwrap();
        checked(&format!("{GOOD},noac,lookupcache=none,actimeo=1,fsc,nosharecache")).unwrap();
    }

    #[test]
    fn mounts_that_do_not_are_refused_with_what_to_do() {
        for (options, why, remedy) in [
            (GOOD.replace("vers=4.2", "vers=3"), "version 3,", "vers=4.2"),
            (GOOD.replace("vers=4.2", "vers=4.0"), "version 4.0,", "vers=4.2"),
            (GOOD.replace("vers=4.2", "vers=4"), "version 4.0,", "vers=4.2"),
            (GOOD.replace("hard", "soft"), "soft:", "with hard"),
            (GOOD.replace("hard", "softerr"), "softerr:", "with hard"),
            (GOOD.replace("hard", "hard,softreval"), "softreval:", "nosoftreval"),
            (GOOD.replace("hard", "hard,nocto"), "nocto:", "without nocto"),
            (GOOD.replace("local_lock=none", "local_lock=all"), "local_lock=all:", "local_lock=none"),
            (GOOD.replace("local_lock=none", "local_lock=flock"), "local_lock=flock:", "local_lock=none"),
            (String::new(), "does not say", "--substrate nfs"),
            ("rw,vers=x".to_owned(), "does not say", "--substrate nfs"),
        ] {
            let refusal = checked(&options).unwrap_err();
            assert!(
                refusal.reason.contains(why) && refusal.remedy.contains(remedy),
                "{options}: {refusal:?}"
            );
        }
    }
}
