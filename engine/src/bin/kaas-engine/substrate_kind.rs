//! The option `--substrate`: what a directory is on.

use clap::ValueEnum;
use kaas_substrate::recognise::Choice;

/// What a directory is on.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum SubstrateKind {
    /// Find out
    Auto,
    /// A file system of this host
    Local,
    /// NFS, version 4.1 or later, mounted hard
    Nfs,
    /// CephFS, by the kernel's client or ceph-fuse
    Cephfs,
}

impl From<SubstrateKind> for Choice {
    fn from(kind: SubstrateKind) -> Self {
        match kind {
            SubstrateKind::Auto => Self::Recognise,
            SubstrateKind::Local => Self::Local,
            SubstrateKind::Nfs => Self::Nfs,
            SubstrateKind::Cephfs => Self::CephFs,
        }
    }
}
