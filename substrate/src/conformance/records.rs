//! Record files.

use super::{Check, Hosts, Outcome, at_once, ensure, ensure_fails, path, put};
use crate::ErrorClass::{Exists, Invalid, NotFound};
use crate::{RECORD_BYTES, RECORD_ZERO_AT, Record, RecordFile, Substrate};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "a record file is created exclusively, of zeros", run: create },
    Check { name: "a record is read where it was written, by every handle", run: write_and_read },
    Check { name: "a record is not written behind the end", run: behind_the_end },
    Check { name: "extending adds zeros and never shortens", run: extend },
    Check { name: "extending and writing at once loses nothing", run: extend_at_once },
];

const ZEROS: Record = [0; RECORD_BYTES];

fn record(fill: u8) -> Record {
    let mut record = [fill; RECORD_BYTES];
    if let Some(zero) = record.get_mut(RECORD_ZERO_AT) {
        *zero = 0;
    }
    record
}

fn read(file: &dyn RecordFile, index: u64) -> crate::Result<Record> {
    let mut records = [record(0xee)];
    file.read(index, &mut records)?;
    let [record] = records;
    Ok(record)
}

fn create(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    volume.create_records(path("r"), 5)?;
    ensure_fails("create it again", volume.create_records(path("r"), 1), Exists)?;
    ensure_fails("create it nowhere", volume.create_records(path("x/r"), 1), NotFound)?;
    ensure_fails("open nothing", volume.open_records(path("x")).map(|_| ()), NotFound)?;
    volume.create_dir(path("d"))?;
    ensure_fails("open a directory", volume.open_records(path("d")).map(|_| ()), Invalid)?;
    let file = volume.open_records(path("r"))?;
    ensure!(file.records()? == 5, "{} records instead of 5", file.records()?);
    for index in 0..5 {
        ensure!(read(file.as_ref(), index)? == ZEROS, "record {index} is not zeros");
    }
    volume.create_records(path("empty"), 0)?;
    ensure!(volume.open_records(path("empty"))?.records()? == 0, "an empty one has records");
    Ok(())
}

fn write_and_read(hosts: &Hosts) -> Outcome {
    hosts.first.create_records(path("r"), 6)?;
    let first = hosts.first.open_records(path("r"))?;
    let second = hosts.second.open_records(path("r"))?;
    first.write(2, &[record(1), record(2)])?;
    second.write(3, &[record(3)])?;
    for file in [&first, &second] {
        let mut all = [record(0xee); 8];
        file.read(0, &mut all)?;
        let expected = [ZEROS, ZEROS, record(1), record(3), ZEROS, ZEROS, ZEROS, ZEROS];
        ensure!(all == expected, "found {:?}", all.map(|record| record.first().copied()));
    }
    first.write(0, &[])?;
    first.read(0, &mut [])?;
    // Many times over one record: what was written last is what is read, by the other handle too.
    for fill in 1..=200 {
        first.write(4, &[record(fill)])?;
        ensure!(read(second.as_ref(), 4)? == record(fill), "write {fill} was not seen");
    }
    Ok(())
}

fn behind_the_end(hosts: &Hosts) -> Outcome {
    let volume = hosts.first.as_ref();
    volume.create_records(path("r"), 2)?;
    let file = volume.open_records(path("r"))?;
    ensure_fails("write at the end", file.write(2, &[record(1)]), Invalid)?;
    ensure_fails("write across the end", file.write(1, &[record(1), record(1)]), Invalid)?;
    ensure_fails("write far behind the end", file.write(u64::MAX / 512, &[record(1)]), Invalid)?;
    ensure!(file.records()? == 2, "the file grew");
    ensure!(read(file.as_ref(), 1)? == ZEROS, "part of a refused write was made");
    ensure!(read(file.as_ref(), 1000)? == ZEROS, "behind the end there are no zeros");
    // A file that ends within a record: the rest of it is zeros.
    put(volume, "torn", &[7; RECORD_BYTES + 100])?;
    let torn = volume.open_records(path("torn"))?;
    ensure!(torn.records()? == 1, "a part of a record counts as one");
    let mut expected = ZEROS;
    expected.iter_mut().take(100).for_each(|byte| *byte = 7);
    ensure!(read(torn.as_ref(), 1)? == expected, "a part of a record is not followed by zeros");
    Ok(())
}

fn extend(hosts: &Hosts) -> Outcome {
    hosts.first.create_records(path("r"), 1)?;
    let first = hosts.first.open_records(path("r"))?;
    let second = hosts.second.open_records(path("r"))?;
    first.write(0, &[record(9)])?;
    first.extend(4)?;
    ensure!(first.records()? == 4 && second.records()? == 4, "not everybody sees the new length");
    second.write(3, &[record(8)])?;
    second.extend(2)?;
    first.extend(4)?;
    ensure!(second.records()? == 4, "it was shortened");
    let mut all = [record(0xee); 4];
    first.read(0, &mut all)?;
    ensure!(all == [record(9), ZEROS, ZEROS, record(8)], "extending changed records");
    Ok(())
}

/// Two handles extend and write at the same time, as two claimants would.
fn extend_at_once(hosts: &Hosts) -> Outcome {
    const RECORDS: u64 = 200;
    hosts.first.create_records(path("r"), 1)?;
    let claimant = |volume: &dyn Substrate, offset: u64| -> Outcome {
        let file = volume.open_records(path("r"))?;
        for index in (offset..RECORDS).step_by(2) {
            file.extend(index + 1)?;
            file.write(index, &[record(u8::try_from(index).unwrap_or(1) | 1)])?;
        }
        Ok(())
    };
    let outcomes = at_once(vec![
        Box::new(|| claimant(hosts.first.as_ref(), 0)),
        Box::new(|| claimant(hosts.second.as_ref(), 1)),
    ]);
    for outcome in outcomes {
        ensure!(outcome.is_some(), "a thread panicked");
        outcome.unwrap_or(Ok(()))?;
    }
    let file = hosts.first.open_records(path("r"))?;
    ensure!(file.records()? == RECORDS, "{} records", file.records()?);
    for index in 0..RECORDS {
        let expected = record(u8::try_from(index).unwrap_or(1) | 1);
        ensure!(read(file.as_ref(), index)? == expected, "record {index} was lost");
    }
    Ok(())
}
