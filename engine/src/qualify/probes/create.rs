//! P2: an exclusive create has one winner. Both processes create the same names in the same order; the one that loses a
//! name is quicker at it and catches up, so that most names are raced for.

use crate::qualify::check::{Basis, Check, Half, Probe, probe};
use crate::qualify::pair::Pair;
use crate::qualify::peer::{Peer, Pending, Trouble};
use crate::qualify::protocol::Ask;

/// Names that are raced for, and how many of them in one go.
const NAMES: u32 = 300;
const AT_ONCE: u32 = 20;

/// Files, by `O_CREAT | O_EXCL`.
pub fn files(pair: &Pair) -> Result<Check, Trouble> {
    let started = Probe::new("exclusive_create", "exclusive create of a file has one winner", Basis::P2);
    probe(started, |probe| race(pair, probe, "excl", false))
}

/// Directories, by `mkdir`.
pub fn dirs(pair: &Pair) -> Result<Check, Trouble> {
    let started = Probe::new("exclusive_mkdir", "exclusive create of a directory has one winner", Basis::P2);
    probe(started, |probe| race(pair, probe, "mkdir", true))
}

fn ask<'a>(peer: &'a Peer, dir: &str, from: u32, dirs: bool) -> Result<Pending<'a>, Trouble> {
    peer.begin(Ask::RaceCreate { prefix: format!("{dir}/"), from, to: from + AT_ONCE, dirs })
}

fn race(pair: &Pair, probe: &mut Probe, what: &str, dirs: bool) -> Result<String, Trouble> {
    let dir = pair.dir(what)?;
    let mut wins = [0_u32; 2];
    for from in (0..NAMES).step_by(AT_ONCE as usize) {
        if !probe.has_time(Half::Second) {
            break;
        }
        let begin = |peer| ask(peer, &dir, from, dirs);
        // Who is asked first has a lead: turn about.
        let (won_a, won_b) = if (from / AT_ONCE).is_multiple_of(2) {
            let (a, b) = (begin(&pair.a)?, begin(&pair.b)?);
            (a.won()?, b.won()?)
        } else {
            let (b, a) = (begin(&pair.b)?, begin(&pair.a)?);
            (a.won()?, b.won()?)
        };
        for (number, (a, b)) in (from..).zip(won_a.into_iter().zip(won_b)) {
            probe.round();
            match (a, b) {
                (true, true) => probe.violation(format!("both processes created name {number}")),
                (false, false) => {
                    probe.violation(format!(
                        "neither process created name {number}, both were told that it exists"
                    ));
                }
                (true, false) => wins[0] += 1,
                (false, true) => wins[1] += 1,
            }
        }
    }
    let [a, b] = wins;
    let there = pair.b.names(Ask::List { path: dir })?.len() as u64;
    let tried = probe.tried();
    if there != tried {
        probe.violation(format!("{there} names are there and not {tried}"));
    }
    probe.figure("won_by_first", f64::from(a));
    probe.figure("won_by_second", f64::from(b));
    Ok(format!("{tried} names raced for, one winner each ({a} to {b})"))
}
