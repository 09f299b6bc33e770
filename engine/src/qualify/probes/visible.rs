//! P4, the half that can be seen without a crash: what fdatasync covered is what a later fresh open in the other process
//! shows, length included. The writer keeps its file open all the time.

use std::time::Duration;

use super::{late, until};
use crate::qualify::check::{Basis, Check, Half, Probe, probe};
use crate::qualify::pair::Pair;
use crate::qualify::peer::{Peer, Trouble};
use crate::qualify::protocol::{Ask, Glance, Opening};

const ROUNDS: u64 = 100;
const BLOCK: u64 = 4096;
/// Stale sights after which no more are looked for.
const ENOUGH: u64 = 2;
/// How long a late sight is waited for, to say how late it is.
const LATE: Duration = Duration::from_secs(3);

/// Opened as consumers' reads are.
pub fn plain(pair: &Pair) -> Result<Check, Trouble> {
    let started = Probe::new("fsync_visible", "a fresh open sees what was fsynced", Basis::P4);
    probe(started, |probe| both_ways(pair, probe, false))
}

/// Opened as a successor opens what it takes over.
pub fn uncached(pair: &Pair) -> Result<Check, Trouble> {
    let title = "a fresh uncached open sees what was fsynced";
    let started = Probe::new("fsync_visible_uncached", title, Basis::P4);
    if !pair.direct() {
        return Ok(started.not_tested("no need on a file system of one host: there is one page cache"));
    }
    probe(started, |probe| both_ways(pair, probe, true))
}

fn both_ways(pair: &Pair, probe: &mut Probe, direct: bool) -> Result<String, Trouble> {
    let dir = pair.dir("visible")?;
    for (ends, name, half) in
        [((&pair.a, &pair.b), "by-a", Half::First), ((&pair.b, &pair.a), "by-b", Half::Second)]
    {
        one_way(pair, probe, ends, &format!("{dir}/{name}"), direct, half)?;
    }
    let tried = probe.tried();
    Ok(format!("{tried} rounds of appends, overwrites and cuts: bytes and length were there at once"))
}

fn one_way(
    pair: &Pair,
    probe: &mut Probe,
    (writer, reader): (&Peer, &Peer),
    path: &str,
    direct: bool,
    half: Half,
) -> Result<(), Trouble> {
    let file = pair.open_in(writer, path, Opening::CreateNew, false)?;
    writer.done(Ask::Write { file, version: 1, offset: 0, length: BLOCK, sync: true })?;
    let mut length = BLOCK;
    let glance = |offset| reader.glance(Ask::Glance { path: path.to_owned(), direct, offset, length: BLOCK });
    for (version, round) in (2..).zip(1..=ROUNDS / 2) {
        if probe.violated() >= ENOUGH || !probe.has_time(half) {
            break;
        }
        probe.round();
        // What the reader then holds in its caches is the state before.
        glance(0)?;
        let (what, offset) = match round % 5 {
            // In place, as nobody but a later leader does behind a tear.
            0 => ("an overwritten block", 0),
            // Back to half of it.
            4 => {
                length = (length / 2).next_multiple_of(BLOCK);
                writer.done(Ask::Cut { file, length })?;
                let seen = |glance: Glance| glance.length == length;
                settle(probe, "the length after a cut", || Ok(seen(glance(length - BLOCK)?)))?;
                continue;
            }
            _ => {
                length += BLOCK;
                ("an appended block", length - BLOCK)
            }
        };
        writer.done(Ask::Write { file, version, offset, length: BLOCK, sync: true })?;
        let seen = |glance: Glance| glance.length == length && glance.seen.is(version, BLOCK);
        settle(probe, what, || Ok(seen(glance(offset)?)))?;
    }
    writer.done(Ask::Close { file })
}

/// A violation unless `seen` at the first look.
fn settle(
    probe: &mut Probe,
    what: &str,
    mut seen: impl FnMut() -> Result<bool, Trouble>,
) -> Result<(), Trouble> {
    if !seen()? {
        let after = until(LATE, seen)?;
        probe.violation(format!("{what} was fsynced and {} by a fresh open", late(after, LATE)));
    }
    Ok(())
}
