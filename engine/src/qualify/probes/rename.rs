//! P1: a rename within one directory is atomic.

use crate::qualify::check::{Basis, Check, Half, Probe, probe};
use crate::qualify::pair::Pair;
use crate::qualify::peer::Trouble;
use crate::qualify::protocol::{Ask, Spin, Spun};

/// Versions that replace each other, by each process.
const VERSIONS: u64 = 60;
/// Bytes of each.
const BYTES: u64 = 16_384;
/// Names that both want to rename, and how many of them in one go.
const RACED: u32 = 100;
const AT_ONCE: u32 = 2;
/// Directories that are renamed into place, and files in each.
const BIRTHS: u32 = 20;
const CHILDREN: u32 = 3;

/// One process replaces a file again and again while the other opens and reads it: it is always there and always whole.
/// An older version may be seen (caches), but none older than one seen before.
pub fn replaced(pair: &Pair) -> Result<Check, Trouble> {
    let started = Probe::new("rename_replaces", "a replaced file is never absent, mixed or short", Basis::P1);
    probe(started, |probe| {
        let dir = pair.dir("rename")?;
        let mut replaced = 0;
        let ways = [(&pair.a, &pair.b, "by-a", Half::First), (&pair.b, &pair.a, "by-b", Half::Second)];
        for (writer, reader, name, half) in ways {
            let target = format!("{dir}/{name}");
            pair.put(writer, &target, 1, BYTES)?;
            // The reader has not looked for the name yet; a listing cannot leave "not there" behind.
            reader.names(Ask::List { path: dir.clone() })?;
            let looking = reader.begin(Ask::Spin(Spin::File { path: target.clone(), length: BYTES }))?;
            let outcome = (2..=VERSIONS).take_while(|_| probe.has_time(half)).try_for_each(|version| {
                let next = format!("{target}.next");
                pair.put(writer, &next, version, BYTES)?;
                writer.done(Ask::Rename { from: next, to: target.clone() })?;
                replaced += 1;
                Ok(())
            });
            let spun = looking.stop()?;
            outcome?;
            judge(probe, &spun);
        }
        Ok(format!("{replaced} versions replaced each other under a reader"))
    })
}

fn judge(probe: &mut Probe, spun: &Spun) {
    probe.rounds(spun.looks);
    probe.violations(spun.absent, format!("the name was absent in {} of {} looks", spun.absent, spun.looks));
    probe.violations(
        spun.torn,
        format!("the file was mixed or short in {} of {} looks{}", spun.torn, spun.looks, torn(spun)),
    );
    probe.violations(
        spun.backwards,
        format!("{} looks saw an older version than the look before", spun.backwards),
    );
    let first = spun.first_failure.as_deref().unwrap_or_default();
    probe.violations(spun.failed, format!("{} looks failed: {first}", spun.failed));
    probe.figure("stale_handles", spun.stale as f64);
}

/// What was found in the first look that did not find a whole file.
fn torn(spun: &Spun) -> String {
    spun.first_torn.map(|seen| format!(" (first {seen})")).unwrap_or_default()
}

/// Both rename the same names away: one of them succeeds, and the other is told that the name is gone.
pub fn one_winner(pair: &Pair) -> Result<Check, Trouble> {
    let started = Probe::new("rename_one_winner", "of two renames of one name, one succeeds", Basis::P1);
    probe(started, |probe| {
        let dir = pair.dir("raced")?;
        let prefix = format!("{dir}/");
        let dirs = false;
        pair.a.begin(Ask::RaceCreate { prefix: prefix.clone(), from: 0, to: RACED, dirs })?.won()?;
        pair.b.names(Ask::List { path: dir.clone() })?;
        let ask = |from, suffix: &str| {
            let (prefix, suffix) = (prefix.clone(), suffix.to_owned());
            Ask::RaceRename { prefix, from, to: from + AT_ONCE, suffix }
        };
        let (mut won_a, mut won_b) = (Vec::new(), Vec::new());
        for from in (0..RACED).step_by(AT_ONCE as usize) {
            if !probe.has_time(Half::Second) {
                break;
            }
            // Who is asked first has a lead: turn about.
            let (a, b) = if (from / AT_ONCE).is_multiple_of(2) {
                let a = pair.a.begin(ask(from, "-a"))?;
                (a, pair.b.begin(ask(from, "-b"))?)
            } else {
                let b = pair.b.begin(ask(from, "-b"))?;
                (pair.a.begin(ask(from, "-a"))?, b)
            };
            won_a.append(&mut a.won()?);
            won_b.append(&mut b.won()?);
        }
        let names = pair.a.names(Ask::List { path: dir })?;
        let mut wins = 0;
        let there = |name: String| names.contains(&name);
        for (number, (a, b)) in won_a.into_iter().zip(won_b).enumerate() {
            probe.round();
            wins += u64::from(a);
            if a == b {
                let who = if a { "both" } else { "neither" };
                probe.violation(format!("{who} of two renames of name {number} succeeded"));
            }
            let found =
                [there(number.to_string()), there(format!("{number}-a")), there(format!("{number}-b"))];
            if found != [false, a, b] {
                probe.violation(format!(
                    "after a race for name {number} other names are there than succeeded"
                ));
            }
        }
        let tried = probe.tried();
        Ok(format!("{tried} names raced for, one winner each ({wins} to {})", tried.saturating_sub(wins)))
    })
}

/// A directory that is built under another name and renamed into place is whole for whoever sees it.
pub fn births(pair: &Pair) -> Result<Check, Trouble> {
    let started = Probe::new("rename_births", "a directory renamed into place is whole", Basis::P1);
    probe(started, |probe| {
        let dir = pair.dir("births")?;
        let spin = Spin::Births { dir: dir.clone(), children: CHILDREN, length: 4096 };
        let looking = pair.b.begin(Ask::Spin(spin))?;
        let mut count = 0;
        let born = (0..BIRTHS).take_while(|_| probe.has_time(Half::Second)).try_for_each(|number| {
            let building = format!("{dir}/~{number}");
            pair.a.done(Ask::CreateDir { path: building.clone() })?;
            (0..CHILDREN).try_for_each(|child| pair.put(&pair.a, &format!("{building}/{child}"), 1, 4096))?;
            pair.a.done(Ask::SyncDir { path: building.clone() })?;
            pair.a.done(Ask::Rename { from: building, to: format!("{dir}/{number}") })?;
            count += 1;
            Ok(())
        });
        let spun = looking.stop()?;
        born?;
        if spun.newest != count {
            probe.violation(format!("{} of {count} directories were seen", spun.newest));
        }
        probe.rounds(spun.newest);
        probe.violations(spun.absent, format!("{} files were missing in new directories", spun.absent));
        probe.violations(
            spun.torn,
            format!("{} files in new directories were not whole{}", spun.torn, torn(&spun)),
        );
        let first = spun.first_failure.as_deref().unwrap_or_default();
        probe.violations(spun.failed, format!("{} looks failed: {first}", spun.failed));
        Ok(format!("{count} directories were looked into as they came, all whole"))
    })
}
