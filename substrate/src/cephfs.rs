//! A directory on CephFS, by the kernel's client or by ceph-fuse.
//!
//! The metadata server hands out capabilities and takes them back before anybody else reads or writes, so that clients see
//! each other's changes at once. Two things are not so:
//!
//! - *ceph-fuse keeps pages that it does not check*, unless it is started with `fuse_disable_pagecache`: a file that
//!   another host has overwritten still reads as before after it was opened anew. Nothing in the mount table says which it
//!   is, so through FUSE whatever others may have written is read with `O_DIRECT`, which asks the cluster. It costs the
//!   page cache for reads of closed segments.
//! - *A client may be told "done" before it is safe.* Creations, renames and removals are safe after an fsync of their
//!   directory, which fails if this client was evicted meanwhile; so an exclusive create is one's own only after that.
//!
//! What one client reads of another's bytes is durable: a client writes to the storage daemons, and these answer no read
//! with what they have not yet committed on every replica they have. So a sync from here is enough to inherit them
//! ([`Adoption::Sync`]); it covers what a killed process of this host left in its client.
//!
//! A client that is cut off for longer than the file system's `session_autoclose` is evicted and blocklisted: everything it
//! does fails from then on ([`crate::ErrorClass::Fenced`], or an I/O error), until it is mounted again. Until then others may wait
//! for its capabilities. Quotas are `NoSpace`.

use std::path::Path;

use crate::posix::{Mounted, Rules};
use crate::{Adoption, Kind, Result, Sharing};

const KERNEL: Rules = Rules {
    kind: Kind::CephFs,
    sharing: Sharing::ManyHosts,
    adoption: Adoption::Sync,
    shared: true,
    delegations: false,
    checked_cache: true,
};

const FUSE: Rules = Rules { checked_cache: false, ..KERNEL };

/// Which client mounts a CephFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CephClient {
    /// The kernel's.
    Kernel,
    /// ceph-fuse.
    Fuse,
}

/// Volumes on CephFS; see the module.
#[derive(Debug)]
pub struct CephFs;

impl CephFs {
    /// Opens an existing directory that this client mounts.
    pub fn open(root: &Path, client: CephClient) -> Result<Mounted> {
        let rules = match client {
            CephClient::Kernel => KERNEL,
            CephClient::Fuse => FUSE,
        };
        Mounted::open_root(root, rules)
    }
}
