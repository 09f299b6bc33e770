//! Consumers: threads that follow the log of a broker and write down every record they are given.

use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::Duration;

use kaas_protocol::ErrorCode;

use super::client::{Client, Failure};
use super::history::History;
use super::record::Tag;
use super::{Stop, Target};

const BACKOFF: Duration = Duration::from_millis(20);

/// What a reader got.
#[derive(Debug, Default)]
pub struct Outcome {
    pub records: u64,
    pub refused: BTreeMap<i16, u64>,
}

/// Starts a reader of all partitions of `topic`; it ends when told to stop.
pub fn start(
    topic: &'static str,
    partitions: i32,
    target: &Target,
    history: &History,
    stop: &Stop,
) -> JoinHandle<Outcome> {
    let (target, history, stop) = (target.clone(), history.clone(), stop.clone());
    std::thread::spawn(move || {
        let mut positions: BTreeMap<i32, i64> = (0..partitions).map(|partition| (partition, 0)).collect();
        let mut outcome = Outcome::default();
        while !stop.is_set() {
            // A broker that is gone comes back, or the test ends.
            if follow(topic, &target, &history, &stop, &mut positions, &mut outcome).is_err() {
                std::thread::sleep(BACKOFF);
            }
        }
        outcome
    })
}

fn follow(
    topic: &str,
    target: &Target,
    history: &History,
    stop: &Stop,
    positions: &mut BTreeMap<i32, i64>,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let mut client = Client::connect(target.get())?;
    while !stop.is_set() {
        let mut refused = false;
        for fetched in client.fetch(topic, positions, 100)? {
            if !fetched.error.is_none() {
                *outcome.refused.entry(fetched.error.code()).or_default() += 1;
                refused = true;
                // A reader's own position can only be out of range if what it read has vanished.
                if fetched.error == ErrorCode::OFFSET_OUT_OF_RANGE {
                    history.violation(format!(
                        "{topic}-{}: the next offset {} is out of range",
                        fetched.partition, positions[&fetched.partition]
                    ));
                }
                continue;
            }
            let position = positions.get_mut(&fetched.partition).expect("a partition that was asked for");
            for (offset, value) in fetched.records {
                match Tag::of_value(&value) {
                    Some(tag) => history.consume(offset, fetched.partition, tag),
                    None => history.violation(format!("a strange record at {offset}: {value:?}")),
                }
                if offset != *position {
                    history.violation(format!(
                        "{topic}-{}: offset {offset} where {position} was due",
                        fetched.partition
                    ));
                }
                *position = offset + 1;
                outcome.records += 1;
            }
        }
        if refused {
            std::thread::sleep(BACKOFF);
        }
    }
    Ok(())
}
