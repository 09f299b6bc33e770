//! Opening a partition whose files say anything.
//!
//! Asserted: it opens or says why not; what it serves has ascending offsets within its bounds, and nobody waits for what is not
//! there; it takes an append behind that; and an open after a crash sees all of it again, the same.

use std::path::Path;
use std::sync::Arc;

use kaas_engine::AppendOptions;
use kaas_engine::batch::{BatchOptions, SimpleRecord, data_batch};
use kaas_substrate::Substrate;

use crate::Archive;
use crate::partition::{Led, Served};

/// Where the partition is in the archive.
pub const DIR: &str = "0";

/// A partition directory as an archive.
pub fn recovery(data: &[u8]) {
    let volume: Arc<dyn Substrate> = Arc::new(Archive::unpack(data).volume());
    let Ok(led) = Led::open(&volume, Path::new(DIR)) else { return };
    let before = led.read_all().map(with_records);
    let batch = data_batch(&[SimpleRecord::of_value("next")], &BatchOptions::default()).expect("a batch");
    let end = led.partition.status().log_end;
    match led.partition.append_and_wait(&batch, AppendOptions::default()) {
        Ok(appended) => assert_eq!(appended.base_offset, end),
        // At the last offset that there is, or on a volume that says it is full.
        Err(_) => return led.crash(),
    }
    led.crash();
    let again = Led::open(&volume, Path::new(DIR));
    let again = again.unwrap_or_else(|error| panic!("it opened, took an append, and opens no more: {error}"));
    if let Some(before) = before {
        let after = with_records(again.read_all().expect("what could be read cannot be read any more"));
        assert!(after.starts_with(&before), "what was served has changed");
        assert_eq!(after.last().map(|last| last.header.base_offset), Some(end));
    }
    again.close();
}

/// Those that a consumer finds a record in: readers pass over a segment without any, until something is appended to it.
fn with_records(served: Vec<Served>) -> Vec<Served> {
    served.into_iter().filter(Served::has_records).collect()
}
