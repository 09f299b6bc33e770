//! Which kind of volume a directory is on, and opening it with the implementation for that kind.
//!
//! The kernel's magic number decides, the mount table adds the name of the file system where the number does not say
//! enough (FUSE), and the options. A volume of no known kind, and one that is mounted in a way on which kaas could not keep
//! its guarantees, is refused with the reason; none is taken for another kind.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, CWD, accessat, statfs};
use rustix::io::Errno;

use crate::{CephClient, CephFs, Local, Mounted, Nfs, Substrate, create_root, nfs};

/// What a directory is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The kind of volume.
    pub family: Family,
    /// Where it is mounted.
    pub point: PathBuf,
    /// The file system's name in the mount table (`ext4`, `nfs4`, `fuse.sshfs`); empty if the table does not say.
    pub file_system: String,
    /// What is mounted: a device, or `server:/path`.
    pub source: String,
    /// Options of the mount and of the file system.
    pub options: Vec<String>,
}

/// Whether a file system of this name (as in [`Mount::file_system`]) is in memory: nothing in it survives a restart of the host.
pub fn is_in_memory(file_system: &str) -> bool {
    matches!(file_system, "tmpfs" | "ramfs")
}

/// A kind of volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// A file system of this host.
    Local,
    /// NFS, any version.
    Nfs,
    /// CephFS, by the kernel's client or by ceph-fuse.
    CephFs,
    /// Anything else: nothing is known about what it keeps.
    Unknown,
}

/// What the operator says the volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Choice {
    /// Find out.
    #[default]
    Recognise,
    /// A file system of this host, even if its kind is not known.
    Local,
    /// NFS, even if the mount table does not say so.
    Nfs,
    /// CephFS, even if the mount table does not say so.
    CephFs,
}

/// Why a mount is refused, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}; {remedy}")]
pub struct Refusal {
    /// What kaas would not keep there, as a sentence about the mount.
    pub reason: String,
    /// What the operator can do.
    pub remedy: &'static str,
}

/// Why a directory cannot be opened as a volume.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be created, opened or looked at.
    #[error(transparent)]
    Storage(#[from] crate::Error),
    /// The volume is mounted in a way that kaas cannot keep its guarantees on.
    #[error("{} is on {family}, mounted on {}: {refusal}", path.display(), point.display())]
    Refused { path: PathBuf, family: Family, point: PathBuf, refusal: Refusal },
    /// The operator says that the volume is of another kind than it is.
    #[error(
        "{} is on {family} ({file_system}, mounted on {}), not on {said}: leave --substrate out",
        path.display(),
        point.display()
    )]
    OtherKind { path: PathBuf, family: Family, said: Family, file_system: String, point: PathBuf },
    /// The kind of volume is not known.
    #[error(
        "{} is on a file system that is not known to keep what kaas needs ({file_system}, mounted on {}): if it is \
         a file system of this host, say so: --substrate local",
        path.display(),
        point.display()
    )]
    NotKnown { path: PathBuf, file_system: String, point: PathBuf },
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "a file system of this host",
            Self::Nfs => "NFS",
            Self::CephFs => "CephFS",
            Self::Unknown => "an unknown file system",
        })
    }
}

/// Finds out what `path` is on; if it does not exist, what its nearest existing parent is on.
pub fn recognise(path: &Path) -> Result<Mount, crate::Error> {
    let failed = |error: io::Error| crate::Error::new(crate::Operation::Open, path, error);
    let existing = nearest_existing(path).map_err(failed)?;
    let magic = statfs(&existing).map_err(|error| failed(error.into()))?.f_type;
    // Without a mount table (a container that hides /proc) the magic number has to do.
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut mount = find_mount(&table, &existing);
    mount.family = family(u64::try_from(magic).unwrap_or(0), &mount.file_system);
    Ok(mount)
}

/// Opens `path` with the implementation for its volume, creating the directory, durably, if it is absent. Nothing is
/// touched if the volume is refused.
pub fn open(path: &Path, choice: Choice) -> Result<Arc<dyn Substrate>, OpenError> {
    let (family, mount) = judge(path, choice)?;
    create_root(path)?;
    Ok(Arc::new(match family {
        Family::Nfs => Nfs::open(path)?,
        Family::CephFs => CephFs::open(path, mount.ceph_client())?,
        Family::Local | Family::Unknown => Local::open(path)?,
    }))
}

/// Whether [`open`] would refuse the volume of `path`. Nothing is touched.
pub fn check(path: &Path, choice: Choice) -> Result<(), OpenError> {
    judge(path, choice).map(|_| ())
}

fn judge(path: &Path, choice: Choice) -> Result<(Family, Mount), OpenError> {
    let mount = recognise(path)?;
    let family = match (mount.family, choice.family()) {
        (found, None) => found,
        (Family::Unknown, Some(said)) => said,
        (found, Some(said)) if found == said => found,
        (family, Some(said)) => {
            let Mount { file_system, point, .. } = mount;
            return Err(OpenError::OtherKind { path: path.to_owned(), family, said, file_system, point });
        }
    };
    if family == Family::Unknown {
        let Mount { file_system, point, .. } = mount;
        return Err(OpenError::NotKnown { path: path.to_owned(), file_system, point });
    }
    if let Err(refusal) = check_options(&mount) {
        return Err(OpenError::Refused { path: path.to_owned(), family, point: mount.point, refusal });
    }
    Ok((family, mount))
}

/// Opens an existing directory with the implementation for its volume, for tools that only read: a mount that a broker
/// would refuse is read too, and a file system of no known kind is taken for one of this host.
pub fn open_to_read(path: &Path) -> Result<Mounted, crate::Error> {
    let mount = recognise(path)?;
    match mount.family {
        Family::Nfs => Nfs::open(path),
        Family::CephFs => CephFs::open(path, mount.ceph_client()),
        Family::Local | Family::Unknown => Local::open(path),
    }
}

/// Whether a volume that is mounted like this keeps what kaas needs, as far as its options say: those that [`open`] would
/// refuse are refused.
pub fn check_options(mount: &Mount) -> Result<(), Refusal> {
    check_writable(mount)?;
    match mount.family {
        Family::Nfs => nfs::check(&mount.options),
        // On the operator's word alone there are no options to be judged.
        Family::Local | Family::CephFs | Family::Unknown => Ok(()),
    }
}

fn check_writable(mount: &Mount) -> Result<(), Refusal> {
    if mount.options.iter().any(|option| option == "ro") {
        return Err(Refusal { reason: "it is mounted read-only".to_owned(), remedy: "mount it with rw" });
    }
    Ok(())
}

impl Choice {
    fn family(self) -> Option<Family> {
        match self {
            Self::Recognise => None,
            Self::Local => Some(Family::Local),
            Self::Nfs => Some(Family::Nfs),
            Self::CephFs => Some(Family::CephFs),
        }
    }
}

impl Mount {
    /// Which client mounts a CephFS: the one that needs more care, if it is not known.
    fn ceph_client(&self) -> CephClient {
        if self.file_system == "ceph" { CephClient::Kernel } else { CephClient::Fuse }
    }
}

/// Whether this process may make something in `path`, or, if that is absent, in its nearest existing parent. Nothing is
/// touched; what the volume itself would say to a write is not known by it.
pub fn check_access(path: &Path) -> Result<(), crate::Error> {
    let failed = |error: io::Error| crate::Error::new(crate::Operation::Create, path, error);
    let existing = nearest_existing(path).map_err(failed)?;
    if !existing.is_dir() {
        return Err(failed(Errno::NOTDIR.into()));
    }
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    accessat(CWD, &existing, wanted, AtFlags::EACCESS).map_err(|error| failed(error.into()))
}

/// What tells a directory from all others of this host, whatever links and mounts lead to it, of `path` and of those above
/// it, upwards; from its nearest existing parent on if it is absent. Device and inode.
pub fn ids_upwards(path: &Path) -> io::Result<Vec<(u64, u64)>> {
    let id = |dir: &Path| std::fs::metadata(dir).map(|metadata| (metadata.dev(), metadata.ino()));
    nearest_existing(path)?.ancestors().map(id).collect()
}

/// `path` without links and dots, or its nearest existing parent if it is absent.
pub fn nearest_existing(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let mut next = absolute.as_path();
    loop {
        match std::fs::canonicalize(next) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match next.parent() {
                Some(parent) => next = parent,
                None => return Err(error),
            },
            outcome => return outcome,
        }
    }
}

/// The kind of volume by the kernel's magic number (`statfs(2)`), and the mount table's name for FUSE.
fn family(magic: u64, file_system: &str) -> Family {
    match magic {
        0x6969 => Family::Nfs,
        0x00c3_6400 => Family::CephFs,
        0x6573_5546 if matches!(file_system, "fuse.ceph-fuse" | "fuse.ceph") => Family::CephFs,
        // ext2 to ext4, XFS, Btrfs, tmpfs, ramfs, overlayfs, F2FS, ZFS, bcachefs, JFS.
        0xef53 | 0x5846_5342 | 0x9123_683e | 0x0102_1994 | 0x8584_58f6 | 0x794c_7630 | 0xf2f5_2010
        | 0x2fc1_2fc1 | 0xca45_1a4e | 0x3153_464a => Family::Local,
        _ => Family::Unknown,
    }
}

/// The mount that `path` (absolute, without links) is on, by the mount table's text.
fn find_mount(table: &str, path: &Path) -> Mount {
    let mut found = Mount {
        family: Family::Unknown,
        point: PathBuf::from("/"),
        file_system: String::new(),
        source: String::new(),
        options: Vec::new(),
    };
    let mut deepest = 0;
    for mount in table.lines().filter_map(parse_mount) {
        let depth = mount.point.components().count();
        // Of two mounts on one point the later one hides the other.
        if path.starts_with(&mount.point) && depth >= deepest {
            deepest = depth;
            found = mount;
        }
    }
    found
}

/// A line of `/proc/self/mountinfo` (see `proc(5)`).
fn parse_mount(line: &str) -> Option<Mount> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(4);
    let point = PathBuf::from(unescape(mount.next()?));
    let options = mount.next()?;
    let mut rest = file_system.split(' ');
    let file_system = unescape(rest.next()?);
    let source = unescape(rest.next()?);
    let options = options.split(',').chain(rest.next().unwrap_or_default().split(','));
    let options = options.filter(|option| !option.is_empty()).map(unescape).collect();
    Some(Mount { family: Family::Unknown, point, file_system, source, options })
}

/// Undoes the octal escapes of the mount table (`\040` is a space).
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        rest = behind;
        let digits =
            behind.get(..3).filter(|digits| *first == b'\\' && digits.iter().all(u8::is_ascii_digit));
        let escaped = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match escaped.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = behind.get(3..).unwrap_or_default();
            }
            None => bytes.push(*first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw,errors=remount-ro
40 22 0:40 / /mnt/shared rw,relatime shared:5 - nfs4 server:/export rw,vers=4.2,hard,proto=tcp
41 22 0:41 / /mnt/with\\040space rw - fuse.ceph-fuse ceph-fuse rw,user_id=0
42 40 0:42 / /mnt/shared/deep rw - tmpfs tmpfs rw,size=10k
43 22 0:43 / /mnt/twice rw - tmpfs first rw
44 43 0:44 / /mnt/twice rw - ceph 10.0.0.1:6789:/ rw,acl
";

    #[test]
    fn the_deepest_and_latest_mount_counts() {
        for (path, source) in [
            ("/", "/dev/vda1"),
            ("/mnt/sharedother", "/dev/vda1"),
            ("/mnt/shared", "server:/export"),
            ("/mnt/shared/a/b", "server:/export"),
            ("/mnt/shared/deep/a", "tmpfs"),
            ("/mnt/with space/x", "ceph-fuse"),
            ("/mnt/twice/x", "10.0.0.1:6789:/"),
        ] {
            assert_eq!(find_mount(TABLE, Path::new(path)).source, source, "{path}");
        }
        let nfs = find_mount(TABLE, Path::new("/mnt/shared/a"));
        assert_eq!((nfs.file_system.as_str(), nfs.point.as_path()), ("nfs4", Path::new("/mnt/shared")));
        assert_eq!(nfs.options, ["rw", "relatime", "rw", "vers=4.2", "hard", "proto=tcp"]);
    }

    #[test]
    fn a_missing_or_garbled_table_is_no_knowledge() {
        for table in ["", "garbage", "1 2 3 - x", "\\04 - "] {
            let mount = find_mount(table, Path::new("/x"));
            assert_eq!((mount.family, mount.file_system.as_str()), (Family::Unknown, ""));
        }
    }

    #[test]
    fn escapes_are_undone() {
        assert_eq!(unescape("a\\040b\\134c\\011"), "a b\\c\t");
        assert_eq!(unescape("\\04"), "\\04");
        assert_eq!(unescape("\\999x"), "\\999x");
    }

    #[test]
    fn families_by_magic_number_and_name() {
        for (magic, name, expected) in [
            (0xef53, "ext4", Family::Local),
            (0x0102_1994, "tmpfs", Family::Local),
            (0x6969, "nfs4", Family::Nfs),
            (0x6969, "", Family::Nfs),
            (0x00c3_6400, "ceph", Family::CephFs),
            (0x6573_5546, "fuse.ceph-fuse", Family::CephFs),
            (0x6573_5546, "fuse.sshfs", Family::Unknown),
            (0xff53_4d42, "cifs", Family::Unknown),
            (0x0102_1997, "9p", Family::Unknown),
            (0, "ext4", Family::Unknown),
        ] {
            assert_eq!(family(magic, name), expected, "{name}");
        }
    }

    #[test]
    fn a_directory_of_this_host_is_opened_and_created() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("a/b");
        assert_eq!(recognise(&dir).unwrap().family, Family::Local);
        let volume = open(&dir, Choice::Recognise).unwrap();
        volume.create_dir(Path::new("x")).unwrap();
        assert!(dir.join("x").is_dir());
        assert_eq!(volume.root(), std::fs::canonicalize(&dir).unwrap());
        open(&dir, Choice::Local).unwrap();
    }

    #[test]
    fn a_volume_of_no_known_kind_is_refused_untouched() {
        let dir = Path::new("/proc/kaas-data");
        let mount = recognise(dir).unwrap();
        assert_eq!((mount.family, mount.file_system.as_str()), (Family::Unknown, "proc"));
        let error = open(dir, Choice::Recognise).unwrap_err();
        assert!(
            matches!(&error, OpenError::NotKnown { file_system, .. } if file_system == "proc"),
            "{error}"
        );
        assert!(error.to_string().contains("mounted on /proc"), "{error}");
        // By the operator's word it is tried, and fails for what it is.
        assert!(matches!(open(dir, Choice::Local), Err(OpenError::Storage(_))));
    }

    #[test]
    fn the_operators_word_does_not_make_a_kind() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("data");
        for (choice, said) in [(Choice::Nfs, "NFS"), (Choice::CephFs, "CephFS")] {
            let error = open(&dir, choice).unwrap_err();
            assert!(matches!(error, OpenError::OtherKind { family: Family::Local, .. }), "{error}");
            assert!(error.to_string().contains(&format!("not on {said}: leave --substrate out")), "{error}");
        }
        assert!(!dir.exists());
        assert_eq!(open_to_read(parent.path()).unwrap().kind(), crate::Kind::Local);
    }

    #[test]
    fn what_is_mounted_read_only_is_refused() {
        let mount = |path: &str| find_mount(&TABLE.replace("rw,size=10k", "ro,size=10k"), Path::new(path));
        check_writable(&mount("/mnt/shared")).unwrap();
        assert!(check_writable(&mount("/mnt/shared/deep")).unwrap_err().reason.contains("read-only"));
    }

    #[test]
    fn ceph_fuse_is_told_from_the_kernels_client() {
        let client = |path: &str| find_mount(TABLE, Path::new(path)).ceph_client();
        assert_eq!(client("/mnt/twice/x"), CephClient::Kernel);
        assert_eq!(client("/mnt/with space"), CephClient::Fuse);
    }

    #[test]
    fn a_file_is_no_directory() {
        let parent = tempfile::tempdir().unwrap();
        let file = parent.path().join("file");
        std::fs::write(&file, b"").unwrap();
        for path in [file.clone(), file.join("below")] {
            let error = open(&path, Choice::Recognise).unwrap_err();
            assert!(
                matches!(&error, OpenError::Storage(error) if error.class == crate::ErrorClass::Invalid),
                "{error}"
            );
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"");
    }
}
