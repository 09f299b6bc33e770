//! Measuring single calls, where they are made.

use std::time::{Duration, Instant};

use kaas_substrate::probing::{AlignedBuffer, ProbeFile};

use super::files::buffer;
use super::{Agent, other};
use crate::qualify::content::fill;
use crate::qualify::protocol::{Failure, Measure, Measured, Opening};

/// Bytes of a record, as the fence has them.
const RECORD: u64 = kaas_substrate::RECORD_BYTES as u64;

/// Records that are read and written in turn.
const RECORDS: u64 = 64;

/// Bytes of a block of sequential reads and writes.
pub const BLOCK: u64 = 1 << 20;

/// How the repetitions of one measurement are bounded, and what they took.
struct Repeated {
    most: u32,
    until: Instant,
    nanos: Vec<u64>,
}

impl Repeated {
    fn new(measure: &Measure) -> Self {
        let until = Instant::now() + Duration::from_millis(measure.at_most_ms);
        Self { most: measure.most, until, nanos: Vec::new() }
    }

    /// Does `one` for 0, 1, ... and notes how long each took.
    fn run(mut self, mut one: impl FnMut(u64) -> Result<(), Failure>) -> Result<Vec<u64>, Failure> {
        for number in 0..u64::from(self.most) {
            let began = Instant::now();
            if began >= self.until && number > 0 {
                break;
            }
            one(number)?;
            self.nanos.push(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        Ok(self.nanos)
    }
}

impl Agent {
    /// Nanoseconds of each repetition.
    pub fn measure(&self, measure: &Measure) -> Result<Vec<u64>, Failure> {
        let repeated = Repeated::new(measure);
        let name = |what: &str, number: u64| format!("{}/{what}-{number}", measure.dir);
        match measure.what {
            Measured::Create => {
                repeated.run(|number| self.open(&name("create", number), Opening::CreateNew, false).map(drop))
            }
            Measured::Open => {
                self.open(&name("open", 0), Opening::CreateNew, false).map(drop)?;
                repeated.run(|_| self.open(&name("open", 0), Opening::Read, false).map(drop))
            }
            Measured::Rename => {
                self.open(&name("rename", 0), Opening::CreateNew, false).map(drop)?;
                let dir = self.dir()?;
                repeated.run(|number| {
                    let (from, to) = (name("rename", number), name("rename", number + 1));
                    Ok(dir.rename(&self.inside(&from)?, &self.inside(&to)?)?)
                })
            }
            Measured::WriteSync { bytes } => {
                let file = self.open(&name("write", u64::from(bytes)), Opening::CreateNew, false)?;
                let mut memory = buffer(u64::from(bytes))?;
                fill(memory.bytes_mut(), 1, 0);
                repeated.run(|number| {
                    file.write_all_at(&memory, number * u64::from(bytes))?;
                    Ok(file.sync_data()?)
                })
            }
            Measured::RecordRead => {
                let (file, mut memory) = self.records(measure)?;
                repeated.run(|number| {
                    let read = file.read_at(&mut memory, number % RECORDS * RECORD)?;
                    if read as u64 == RECORD { Ok(()) } else { Err(other("a record was read short")) }
                })
            }
            Measured::RecordWrite => {
                let (file, mut memory) = self.records(measure)?;
                fill(memory.bytes_mut(), 1, 0);
                repeated.run(|number| {
                    file.write_all_at(&memory, number % RECORDS * RECORD)?;
                    Ok(file.sync_data()?)
                })
            }
            Measured::SequentialWrite => {
                let file = self.open(&name("sequential", 0), Opening::CreateNew, false)?;
                let mut memory = buffer(BLOCK)?;
                let mut nanos = repeated.run(|number| {
                    fill(memory.bytes_mut(), 1, number * BLOCK);
                    Ok(file.write_all_at(&memory, number * BLOCK)?)
                })?;
                let began = Instant::now();
                file.sync_data()?;
                nanos.push(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
                Ok(nanos)
            }
            Measured::SequentialRead => {
                let file = self.open(&name("sequential", 0), Opening::Read, false)?;
                file.drop_cached()?;
                let blocks = file.length()? / BLOCK;
                let mut memory = buffer(BLOCK)?;
                let mut nanos = repeated;
                nanos.most = nanos.most.min(u32::try_from(blocks).unwrap_or(u32::MAX));
                nanos.run(|number| {
                    let read = file.read_at(&mut memory, number * BLOCK)?;
                    if read as u64 == BLOCK { Ok(()) } else { Err(other("a block was read short")) }
                })
            }
        }
    }

    /// A file of records for one measurement, opened as the fence is.
    fn records(&self, measure: &Measure) -> Result<(ProbeFile, AlignedBuffer), Failure> {
        let path = format!("{}/records-{:?}", measure.dir, measure.what);
        let file = self.open(&path, Opening::CreateNew, false)?;
        file.set_length(RECORDS * RECORD)?;
        file.sync_data()?;
        drop(file);
        Ok((self.open(&path, Opening::ReadWrite, measure.direct)?, buffer(RECORD)?))
    }
}
