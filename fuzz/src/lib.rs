//! The fuzz targets of kaas as plain functions: bytes in, nothing out; they panic if something is wrong.
//!
//! Each target is what stands between foreign bytes and kaas: what clients send, what lies on a volume, what another system
//! wrote. That nothing panics, overflows or takes memory without bound is checked by the way; what is asserted is said at each.

mod archive;
mod batch;
mod checksums;
mod import;
mod index;
mod journal;
mod partition;
mod recovery;
mod request;
mod seeds;
mod tree;
mod verify;

use std::path::Path;

pub use archive::{Archive, Item};
pub use batch::{batch, producer_state};
pub use import::import;
pub use index::index;
pub use journal::journal;
pub use recovery::recovery;
pub use request::request;
pub use verify::verify;

/// A target: it panics if something is wrong with these bytes.
pub type Target = fn(&[u8]);

/// Every target by its name.
pub const TARGETS: &[(&str, Target)] = &[
    ("batch", batch),
    ("index", index),
    ("producer_state", producer_state),
    ("recovery", recovery),
    ("journal", journal),
    ("request", request),
    ("verify", verify),
    ("import", import),
];

/// The target of that name.
fn find(name: &str) -> Target {
    let found = TARGETS.iter().find(|(target, _)| *target == name);
    found.unwrap_or_else(|| panic!("there is no target {name:?}")).1
}

/// The target that the environment names (`KAAS_FUZZ_TARGET`). With `KAAS_FUZZ_SEEDS=DIR` its seeds are written there and the
/// process ends.
pub fn chosen() -> Target {
    let name = std::env::var("KAAS_FUZZ_TARGET").expect("KAAS_FUZZ_TARGET names a target");
    let target = find(&name);
    if let Some(dir) = std::env::var_os("KAAS_FUZZ_SEEDS") {
        seeds::write(&name, target, Path::new(&dir));
        std::process::exit(0);
    }
    target
}
