//! The fuzz targets of kaas as plain functions: bytes in, nothing out; they panic if something is wrong.
//!
//! Each target is what stands between foreign bytes and kaas: what clients send, what lies on a volume, what another system
//! wrote. That nothing panics, overflows or takes memory without bound is checked by the way; what is asserted is said at each.

mod archive;
mod batch;
mod directories;
mod index;
mod journal;
mod recovery;
mod request;
mod seeds;

use std::path::Path;

pub use archive::{Archive, Item};
pub use batch::{batch, producer_state};
pub use directories::{import, verify};
pub use index::index;
pub use journal::journal;
pub use recovery::recovery;
pub use request::request;

/// Every target by its name.
pub const TARGETS: &[(&str, fn(&[u8]))] = &[
    ("batch", batch),
    ("index", index),
    ("producer_state", producer_state),
    ("recovery", recovery),
    ("journal", journal),
    ("request", request),
    ("verify", verify),
    ("import", import),
];

/// To be called by each target's program first: with `KAAS_FUZZ_SEEDS=DIR` it writes its seeds there and ends.
pub fn seeds_only(target: &str) {
    if let Some(dir) = std::env::var_os("KAAS_FUZZ_SEEDS") {
        seeds::write(target, Path::new(&dir));
        std::process::exit(0);
    }
}
