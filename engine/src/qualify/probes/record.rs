//! P3: a record written uncached and synced in place by one process is what a later uncached read by the other returns.
//! It is what tells a deposed leader that it was deposed, so a single late answer is one too many.

use std::time::Duration;

use super::{late, until};
use crate::qualify::check::{Basis, Check, Half, Probe, probe};
use crate::qualify::pair::Pair;
use crate::qualify::peer::Trouble;
use crate::qualify::protocol::{Ask, Opening, Spin};

const ROUNDS: u32 = 250;
const RECORD: u64 = kaas_substrate::RECORD_BYTES as u64;
/// Late answers after which no more are looked for.
const ENOUGH: u64 = 2;
/// How long a late answer is waited for, to say how late it is.
const LATE: Duration = Duration::from_secs(3);

/// In each round one process holds the record open and reads it all the time, the other writes it, and the next read that
/// is asked for after the write has returned must see it.
pub fn never_late(pair: &Pair) -> Result<Check, Trouble> {
    let started = Probe::new("record_uncached", "a read after a record was written is never late", Basis::P3);
    probe(started, |probe| {
        let dir = pair.dir("record")?;
        let path = format!("{dir}/fence");
        let made = pair.open_in(&pair.a, &path, Opening::CreateNew, false)?;
        pair.a.done(Ask::Cut { file: made, length: u64::from(ROUNDS) * RECORD })?;
        pair.a.done(Ask::Close { file: made })?;
        pair.b.names(Ask::List { path: dir })?;
        let direct = pair.direct();
        let file_a = pair.open_in(&pair.a, &path, Opening::ReadWrite, direct)?;
        let file_b = pair.open_in(&pair.b, &path, Opening::ReadWrite, direct)?;
        // As kaas does with every open (see the note `unasked_read`).
        for peer in [&pair.a, &pair.b] {
            peer.length(Ask::Look { path: path.clone() })?;
        }
        let (mut torn, mut looks) = (0, 0);
        for round in 0..ROUNDS {
            if probe.violated() >= ENOUGH || !probe.has_time(Half::Second) {
                break;
            }
            let ends = [(&pair.a, file_a), (&pair.b, file_b)];
            let [(writer, to_write), (reader, to_read)] =
                if round % 2 == 0 { ends } else { [ends[1], ends[0]] };
            let (offset, length, version) = (u64::from(round) * RECORD, RECORD, u64::from(round) + 1);
            let read = || reader.seen(Ask::Read { file: to_read, offset, length });
            probe.round();
            if !read()?.is(0, RECORD) {
                probe.violation(format!("record {round} was not zero before it was written"));
            }
            let looking = reader.begin(Ask::Spin(Spin::Record { file: to_read, offset, length }))?;
            let written = writer.done(Ask::Write { file: to_write, version, offset, length, sync: true });
            let after = read();
            let spun = looking.stop()?;
            written?;
            if !after?.is(version, RECORD) {
                let seen = until(LATE, || Ok(read()?.is(version, RECORD)))?;
                probe.violation(format!("a record that was written {}", late(seen, LATE)));
            }
            let what = format!("record {round} was seen, and then what was there before");
            probe.violations(spun.backwards, what);
            let first = spun.first_failure.as_deref().unwrap_or_default();
            probe.violations(spun.failed, format!("reads of record {round} failed: {first}"));
            torn += spun.torn;
            looks += spun.looks;
        }
        probe.figure("reads_meanwhile", looks as f64);
        probe.figure("torn_meanwhile", torn as f64);
        let how = if direct { "with O_DIRECT" } else { "through the page cache of this host" };
        Ok(format!("{} records written by turns, {how}: every later read saw them", probe.tried()))
    })
}
