//! What the kernel tells of one mount: when it came to be, and what its NFS client has done since.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

/// Asks `statx` for a mount id that no other mount gets while this kernel runs; since Linux 6.8.
const UNIQUE_MOUNT_ID: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// One mounting of a volume: what tells it from a later one at the same place, and one connection to its server from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mounting {
    /// Of this mount and no other while this kernel runs; `None` where the kernel has no such number.
    pub unique_id: Option<u64>,
    /// Seconds since it was mounted; `None` if it is no NFS mount.
    pub age_s: Option<u64>,
    /// How often its NFS client has connected to the server since then; `None` if it is no NFS mount.
    pub connections: Option<u64>,
}

/// The mount at `point`. Asks the volume nothing beyond a look at that directory.
pub fn mounting(point: &Path) -> Mounting {
    let stats = std::fs::read_to_string("/proc/self/mountstats").unwrap_or_default();
    let (age_s, connections) = of_nfs(&stats, point).unzip();
    Mounting { unique_id: unique_id(point), age_s, connections }
}

fn unique_id(point: &Path) -> Option<u64> {
    let found = statx(CWD, point, AtFlags::empty(), UNIQUE_MOUNT_ID).ok()?;
    let told = StatxFlags::from_bits_retain(found.stx_mask).contains(UNIQUE_MOUNT_ID);
    told.then_some(found.stx_mnt_id)
}

/// How many delegations this host's NFS client has given back on the mount at `point` since it was mounted; `None` if
/// that is no NFS mount.
pub fn delegations_returned(point: &Path) -> Option<u64> {
    delegations_in(&std::fs::read_to_string("/proc/self/mountstats").ok()?, point)
}

/// The lines about the NFS mount at `point`.
fn section<'a>(stats: &'a str, point: &Path) -> Option<impl Iterator<Item = &'a str> + use<'a>> {
    let on = format!(" mounted on {} with fstype nfs", point.display());
    let of_device = stats
        .split("\ndevice ")
        .find(|section| section.lines().next().is_some_and(|line| line.contains(&on)))?;
    Some(of_device.lines().map(str::trim))
}

fn delegations_in(stats: &str, point: &Path) -> Option<u64> {
    let line = section(stats, point)?.find_map(|line| line.strip_prefix("DELEGRETURN:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Age and number of connections. A transport's line: its kind, its port, how often it was bound, how often connected.
fn of_nfs(stats: &str, point: &Path) -> Option<(u64, u64)> {
    let mut lines = section(stats, point)?;
    let age = lines.find_map(|line| line.strip_prefix("age:"))?.trim().parse().ok()?;
    let transports = lines.filter_map(|line| line.strip_prefix("xprt:"));
    let counts = transports.filter_map(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok());
    Some((age, counts.sum()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returned_delegations_are_those_of_the_mount() {
        let stats = "device proc mounted on /proc with fstype proc\n\
            device server:/a mounted on /mnt/a with fstype nfs4 statvers=1.1\n\tper-op statistics\n\
            \t      DELEGRETURN: 3 3 0 600 480 0 0 1 0\n\
            device server:/b mounted on /mnt/a/b with fstype nfs4 statvers=1.1\n\
            \t      DELEGRETURN: 14 14 0 600 480 0 0 1 0\n";
        assert_eq!(delegations_in(stats, Path::new("/mnt/a")), Some(3));
        assert_eq!(delegations_in(stats, Path::new("/mnt/a/b")), Some(14));
        assert_eq!(delegations_in(stats, Path::new("/proc")), None);
        assert_eq!(delegations_in("", Path::new("/mnt/a")), None);
    }

    #[test]
    fn age_and_connections_are_those_of_the_mount() {
        let stats = "device proc mounted on /proc with fstype proc\n\
            device server:/a mounted on /mnt/a with fstype nfs4 statvers=1.1\n\
            \topts:\trw,vers=4.2,hard,nconnect=2\n\tage:\t126\n\
            \txprt:\ttcp 703 1 2 0 12 290 290 0 290 0 2 0 0\n\
            \txprt:\ttcp 0 0 3 0 12 290 290 0 290 0 2 0 0\n\
            device server:/b mounted on /mnt/b with fstype nfs4 statvers=1.1\n\
            \tage:\t7\n\txprt:\ttcp 0 0 1 0 12 290 290 0 290 0 2 0 0\n";
        assert_eq!(of_nfs(stats, Path::new("/mnt/a")), Some((126, 5)));
        assert_eq!(of_nfs(stats, Path::new("/mnt/b")), Some((7, 1)));
        assert_eq!(of_nfs(stats, Path::new("/proc")), None);
    }

    #[test]
    fn a_local_mount_has_no_server_and_stays_the_same() {
        let one = mounting(Path::new("/"));
        assert_eq!((one.age_s, one.connections), (None, None));
        assert_eq!(one, mounting(Path::new("/")));
        // Kernels before 6.8 do not tell.
        assert!(one.unique_id.is_none_or(|id| Some(id) != mounting(Path::new("/proc")).unique_id));
    }
}
