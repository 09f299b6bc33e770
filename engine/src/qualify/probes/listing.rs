//! A successor finds what its predecessor left by listing the directory, so a listing that is asked for after a name was
//! created, renamed or removed must show it so; and a name that nobody looked for too early must open.

use crate::qualify::check::{Basis, Check, Half, Probe, probe};
use crate::qualify::pair::Pair;
use crate::qualify::peer::Trouble;
use crate::qualify::protocol::Ask;

const ROUNDS: u64 = 50;

/// Fresh in both directions.
pub fn fresh(pair: &Pair) -> Result<Check, Trouble> {
    let started =
        Probe::new("listing_fresh", "a listing shows what was created, renamed, removed", Basis::P4);
    probe(started, |probe| {
        let dir = pair.dir("listing")?;
        for round in 0..ROUNDS {
            if !probe.has_time(Half::Second) {
                break;
            }
            let (writer, reader) = if round % 2 == 0 { (&pair.a, &pair.b) } else { (&pair.b, &pair.a) };
            let name = |suffix: &str| format!("{round}{suffix}");
            let path = |suffix: &str| format!("{dir}/{round}{suffix}");
            let there = || reader.names(Ask::List { path: dir.clone() });
            probe.round();
            // Fills the caches with the state before.
            there()?;
            pair.put(writer, &path(""), round, 4096)?;
            writer.done(Ask::SyncDir { path: dir.clone() })?;
            if !there()?.contains(&name("")) {
                probe.violation("a listing lacked a file that was there");
            }
            let glance = Ask::Glance { path: path(""), direct: false, offset: 0, length: 4096 };
            let glance = reader.glance(glance)?;
            if !(glance.length == 4096 && glance.seen.is(round, 4096)) {
                probe.violation("a new file was opened, and its bytes were not there");
            }
            writer.done(Ask::Rename { from: path(""), to: path(".renamed") })?;
            let names = there()?;
            if names.contains(&name("")) || !names.contains(&name(".renamed")) {
                probe.violation("a listing showed the state before a rename");
            }
            writer.done(Ask::Remove { path: path(".renamed") })?;
            if there()?.contains(&name(".renamed")) {
                probe.violation("a listing showed a name that had been removed");
            }
        }
        let tried = probe.tried();
        Ok(format!("{tried} files created, renamed and removed: every later listing showed it"))
    })
}
