//! What is worth knowing about a volume, and what kaas copes with: caches of names and attributes, files that are removed
//! while open, delegations, locks, clocks, space.

use std::time::{Duration, Instant};

use super::{lag, until, words};
use crate::qualify::check::{Basis, Check, Probe, probe};
use crate::qualify::pair::Pair;
use crate::qualify::peer::{Peer, Trouble};
use crate::qualify::protocol::{Ask, FailureClass, Family, Locking, Opening};

/// How long a cached state is watched. Enough for a client's usual 3 s, not for NFS's 30 s of absent names.
const WATCHED: Duration = Duration::from_secs(4);

/// New files that are read right after they were opened.
const UNASKED: u32 = 10;

/// An open that takes longer than this waits for somebody.
const SLOW_OPEN: Duration = Duration::from_secs(1);

fn note(name: &'static str, title: &'static str) -> Probe {
    Probe::new(name, title, Basis::Nothing)
}

/// Whether files can be read and written with `O_DIRECT`. Where kaas needs it, the records show it.
pub fn direct(pair: &Pair) -> Result<Check, Trouble> {
    probe(note("direct_io", "O_DIRECT"), |_| {
        let path = format!("{}/file", pair.dir("direct")?);
        let file = pair.open_in(&pair.a, &path, Opening::CreateNew, true)?;
        pair.a.done(Ask::Write { file, version: 1, offset: 0, length: 4096, sync: true })?;
        let seen = pair.a.seen(Ask::Read { file, offset: 0, length: 4096 })?;
        pair.a.done(Ask::Close { file })?;
        let used = if pair.direct() { "used for records" } else { "not needed on one host" };
        Ok(if seen.is(1, 4096) {
            format!("works; {used}")
        } else {
            "was accepted, and other bytes were read than written".to_owned()
        })
    })
}

fn there(peer: &Peer, path: &str) -> Result<bool, Trouble> {
    match peer.length(Ask::Look { path: path.to_owned() }) {
        Ok(_) => Ok(true),
        Err(trouble) if trouble.class() == Some(FailureClass::NotFound) => Ok(false),
        Err(trouble) => Err(trouble),
    }
}

/// How long a name that was looked for too early stays absent. kaas lists directories and never probes for names.
pub fn absent_names(pair: &Pair) -> Result<Check, Trouble> {
    probe(note("absent_names", "a name looked for too early"), |probe| {
        let dir = pair.dir("absent")?;
        let path = format!("{dir}/late");
        there(&pair.b, &path)?;
        pair.put(&pair.a, &path, 1, 4096)?;
        let seen = until(WATCHED, || there(&pair.b, &path))?;
        probe.figure("seen_after_ms", milliseconds(seen));
        let mut text = format!("is found {} once it was created", lag(seen, WATCHED));
        if seen.is_none() {
            pair.b.names(Ask::List { path: dir })?;
            let cured = there(&pair.b, &path)?;
            text += if cured { "; at once after a listing" } else { "; nor after a listing" };
        }
        Ok(text)
    })
}

/// How long a removed name is still there for who has looked at it.
pub fn present_names(pair: &Pair) -> Result<Check, Trouble> {
    probe(note("present_names", "a name removed elsewhere"), |probe| {
        let dir = pair.dir("present")?;
        let path = format!("{dir}/gone");
        pair.put(&pair.a, &path, 1, 4096)?;
        pair.b.names(Ask::List { path: dir })?;
        there(&pair.b, &path)?;
        pair.a.done(Ask::Remove { path: path.clone() })?;
        let seen = until(WATCHED, || Ok(!there(&pair.b, &path)?))?;
        probe.figure("seen_after_ms", milliseconds(seen));
        Ok(format!("stat says that it is gone {}", lag(seen, WATCHED)))
    })
}

/// How long an older length is told by `stat`.
pub fn attributes(pair: &Pair) -> Result<Check, Trouble> {
    probe(note("attributes", "a length changed elsewhere"), |probe| {
        let dir = pair.dir("attributes")?;
        let path = format!("{dir}/grows");
        let file = pair.open_in(&pair.a, &path, Opening::CreateNew, false)?;
        pair.a.done(Ask::Write { file, version: 1, offset: 0, length: 4096, sync: true })?;
        pair.b.names(Ask::List { path: dir })?;
        let length = || pair.b.length(Ask::Look { path: path.clone() });
        length()?;
        pair.a.done(Ask::Write { file, version: 1, offset: 4096, length: 4096, sync: true })?;
        let seen = until(WATCHED, || Ok(length()? == 8192))?;
        pair.a.done(Ask::Close { file })?;
        probe.figure("seen_after_ms", milliseconds(seen));
        Ok(format!("stat tells it {}", lag(seen, WATCHED)))
    })
}

/// Whether a file that is new from elsewhere can be read before its length was asked for. The kernel's client of CephFS
/// (Linux 6.1) reads nothing then; kaas asks with every open.
pub fn unasked_read(pair: &Pair) -> Result<Check, Trouble> {
    probe(note("unasked_read", "a read right after the open"), |probe| {
        let dir = pair.dir("unasked")?;
        let mut short = 0;
        for number in 0..UNASKED {
            let path = format!("{dir}/{number}");
            pair.put(&pair.a, &path, 1, 4096)?;
            pair.b.names(Ask::List { path: dir.clone() })?;
            let file = pair.open_in(&pair.b, &path, Opening::Read, false)?;
            let seen = pair.b.seen(Ask::Read { file, offset: 0, length: 4096 })?;
            pair.b.done(Ask::Close { file })?;
            short += u32::from(!seen.is(1, 4096));
        }
        probe.figure("short", f64::from(short));
        Ok(match short {
            0 => "sees a new file whole".to_owned(),
            short => format!(
                "saw nothing or less in {short} of {UNASKED} new files; not so once asked for the length"
            ),
        })
    })
}

/// What becomes of a file that is removed while it is open, here and elsewhere.
pub fn removed_while_open(pair: &Pair) -> Result<Check, Trouble> {
    probe(note("removed_while_open", "a file removed while open"), |_| {
        let dir = pair.dir("removed")?;
        let list = || pair.a.names(Ask::List { path: dir.clone() });
        let file = held(pair, &format!("{dir}/elsewhere"))?;
        pair.b.names(Ask::List { path: dir.clone() })?;
        pair.b.done(Ask::Remove { path: format!("{dir}/elsewhere") })?;
        let elsewhere = match pair.a.seen(Ask::Read { file, offset: 0, length: 4096 }) {
            Ok(_) => "still readable if removed elsewhere".to_owned(),
            Err(Trouble::Refused { failure, .. }) => format!("if removed elsewhere: {}", failure.message),
            Err(trouble) => return Err(trouble),
        };
        pair.a.done(Ask::Close { file })?;
        let file = held(pair, &format!("{dir}/here"))?;
        pair.a.done(Ask::Remove { path: format!("{dir}/here") })?;
        let kept = list()?;
        pair.a.done(Ask::Close { file })?;
        let left = list()?;
        let here = match (kept.iter().find(|name| name.starts_with(".nfs")), left.is_empty()) {
            (Some(name), true) => {
                format!("kept as {} until closed if removed here", name.get(..4).unwrap_or(name))
            }
            (None, true) => "gone at once if removed here".to_owned(),
            (_, false) => format!("if removed here, {} stays after the close", left.join(", ")),
        };
        Ok(format!("{elsewhere}; {here}"))
    })
}

fn held(pair: &Pair, path: &str) -> Result<u32, Trouble> {
    pair.put(&pair.a, path, 1, 4096)?;
    pair.open_in(&pair.a, path, Opening::ReadWrite, false)
}

/// Whether a file that one process holds open makes the other's open for writing wait, and whether the NFS server hands
/// out delegations, which it would wait for if the holder could not be reached.
pub fn held_opens(pair: &Pair) -> Result<Check, Trouble> {
    probe(note("held_opens", "opens held elsewhere"), |probe| {
        let dir = pair.dir("held")?;
        let mut said = Vec::new();
        for (direct, how) in [(false, "plain"), (true, "direct")] {
            let path = format!("{dir}/{how}");
            pair.put(&pair.a, &path, 1, 4096)?;
            pair.b.names(Ask::List { path: dir.clone() })?;
            let held = match pair.open_in(&pair.b, &path, Opening::Read, direct) {
                Err(trouble) if trouble.class() == Some(FailureClass::Other) && direct => continue,
                outcome => outcome?,
            };
            pair.b.seen(Ask::Read { file: held, offset: 0, length: 4096 })?;
            let before = pair.b.number(Ask::Delegations)?;
            let began = Instant::now();
            let file = pair.open_in(&pair.a, &path, Opening::ReadWrite, true)?;
            pair.a.done(Ask::Write { file, version: 2, offset: 0, length: 4096, sync: true })?;
            let took = began.elapsed();
            let after = pair.b.number(Ask::Delegations)?;
            pair.a.done(Ask::Close { file })?;
            pair.b.done(Ask::Close { file: held })?;
            probe.figure(if direct { "direct_ms" } else { "plain_ms" }, milliseconds(Some(took)));
            let delegated = match (before, after) {
                (Some(before), Some(after)) if after > before => ", a delegation was recalled",
                (Some(_), Some(_)) => ", no delegation",
                _ => "",
            };
            let slow = if took > SLOW_OPEN { " (slow)" } else { "" };
            said.push(format!("{how}: open and write elsewhere took {}{slow}{delegated}", words(took)));
        }
        Ok(said.join("; "))
    })
}

/// Whether advisory locks exclude the other process. kaas uses one against starting two brokers on one directory by
/// mistake, and never for safety.
pub fn locks(pair: &Pair) -> Result<Check, Trouble> {
    probe(note("locks", "advisory locks"), |_| {
        let dir = pair.dir("locks")?;
        let mut said = Vec::new();
        for (kind, name) in [(Locking::Whole, "flock"), (Locking::Posix, "fcntl")] {
            let path = format!("{dir}/{name}");
            pair.put(&pair.a, &path, 1, 4096)?;
            pair.b.names(Ask::List { path: dir.clone() })?;
            let here = pair.open_in(&pair.a, &path, Opening::ReadWrite, false)?;
            let elsewhere = pair.open_in(&pair.b, &path, Opening::ReadWrite, false)?;
            let outcome = match pair.a.flag(Ask::Lock { file: here, kind }) {
                Ok(true) => match pair.b.flag(Ask::Lock { file: elsewhere, kind })? {
                    false => "excludes the other",
                    true => "does NOT exclude the other",
                },
                Ok(false) => "was not to be had",
                Err(Trouble::Refused { .. }) => "is not supported",
                Err(trouble) => return Err(trouble),
            };
            pair.a.done(Ask::Close { file: here })?;
            pair.b.done(Ask::Close { file: elsewhere })?;
            said.push(format!("{name} {outcome}"));
        }
        Ok(said.join("; "))
    })
}

/// How far the two clocks are apart; kaas relies on none.
pub fn clocks(pair: &Pair) -> Result<Check, Trouble> {
    probe(note("clocks", "clocks"), |probe| {
        let mut best: Option<(Duration, f64)> = None;
        for _ in 0..5 {
            let before = pair.a.number(Ask::Clock)?.unwrap_or(0);
            let began = Instant::now();
            let between = pair.b.number(Ask::Clock)?.unwrap_or(0);
            let took = began.elapsed();
            let after = pair.a.number(Ask::Clock)?.unwrap_or(0);
            let skew = between as f64 - (before as f64 + after as f64) / 2.0;
            if best.is_none_or(|(least, _)| took < least) {
                best = Some((took, skew / 1e3));
            }
        }
        let (took, skew) = best.unwrap_or_default();
        probe.figure("skew_ms", skew);
        probe.figure("round_trip_ms", milliseconds(Some(took)));
        Ok(format!("{skew:+.1} ms apart, give or take {}", words(took)))
    })
}

/// What the volume says about its space.
pub fn space(pair: &Pair) -> Result<Check, Trouble> {
    probe(note("space", "space"), |_| {
        let volume = &pair.facts.volume_a;
        Ok(match (volume.available_bytes, volume.total_bytes) {
            (Some(available), Some(total)) => format!("{} of {} available", giga(available), giga(total)),
            _ if volume.family == Family::CephFs => {
                "not told (CephFS without a manager daemon): unknown, not full".into()
            }
            _ => "not told: unknown, not full".into(),
        })
    })
}

fn giga(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

/// For a figure; -1 for what was not seen.
fn milliseconds(duration: Option<Duration>) -> f64 {
    duration.map_or(-1.0, |duration| (duration.as_secs_f64() * 1e6).round() / 1e3)
}
