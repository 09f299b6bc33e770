//! What two hosts see of each other: the observable half of the four properties.

use std::io::IoSlice;

use super::{Check, Hosts, Outcome, at_once, ensure, ensure_fails, get, names_in, path, put};
use crate::ErrorClass::{Exists, NotFound};
use crate::{OpenMode, RECORD_BYTES, Substrate};

pub(super) const CHECKS: &[Check] = &[
    Check { name: "P1: a rename that replaces is never seen half done", run: atomic_rename },
    Check { name: "P2: an exclusive create has one winner", run: one_winner },
    Check { name: "P2: so has the creation of a directory or a record file", run: one_winner_of_others },
    Check { name: "P4: a fresh open sees what was synced, length included", run: synced_is_seen },
    Check { name: "an uncached handle sees what is synced after it was opened", run: uncached_handle },
    Check { name: "what was overwritten in place is not read as it was before", run: overwritten },
    Check { name: "of two full directories one gets a name", run: one_directory },
    Check { name: "a fence is never seen late", run: fresh_records },
    Check { name: "a tail is seen whole, and what follows it later", run: fresh_tail },
    Check { name: "a listing shows what the other host did", run: fresh_listing },
    Check { name: "a file that one host moves is where the other finds it", run: moved },
    Check { name: "a name that was looked up too early is found in a listing", run: early_lookup },
];

fn atomic_rename(hosts: &Hosts) -> Outcome {
    const ROUNDS: u8 = 150;
    put(hosts.first.as_ref(), "f", &[0; 5000])?;
    let writer = || -> Outcome {
        for round in 1..=ROUNDS {
            put(hosts.first.as_ref(), "next", &[round; 5000])?;
            hosts.first.rename(path("next"), path("f"))?;
        }
        Ok(())
    };
    let reader = || -> Outcome {
        let mut last = 0;
        while last < ROUNDS {
            let found = get(hosts.second.as_ref(), "f")?;
            let first = found.first().copied().unwrap_or(0);
            ensure!(found.len() == 5000 && found.iter().all(|byte| *byte == first), "a mixture was seen");
            ensure!(first >= last, "version {first} after {last}");
            last = first;
        }
        Ok(())
    };
    for outcome in at_once(vec![Box::new(writer), Box::new(reader)]) {
        ensure!(outcome.is_some(), "a thread panicked");
        outcome.unwrap_or(Ok(()))?;
    }
    Ok(())
}

fn moved(hosts: &Hosts) -> Outcome {
    hosts.first.create_dir(path("d"))?;
    let late = put(hosts.second.as_ref(), "f", b"one")?;
    if hosts.first.move_file(path("f"), path("d/f")).is_err() {
        // A volume that cannot says so, and the caller copies.
        return Ok(());
    }
    // In this order: a listing ends what is remembered of names.
    ensure!(names_in(hosts.second.as_ref(), "")? == ["d"], "the former name is still there");
    ensure!(names_in(hosts.second.as_ref(), "d")? == ["f"], "the new name is not there");
    ensure!(get(hosts.second.as_ref(), "d/f")? == b"one", "it has another content");
    late.write_all_at(&[IoSlice::new(b"two")], 0)?;
    late.sync_data()?;
    ensure!(get(hosts.first.as_ref(), "d/f")? == b"two", "what its writer wrote late is elsewhere");
    ensure!(
        names_in(hosts.first.as_ref(), "")? == ["d"],
        "what its writer wrote late has brought the name back"
    );
    Ok(())
}

/// Four contenders on two handles, many rounds; the number of winners of each round.
fn contend(hosts: &Hosts, attempt: fn(&dyn Substrate, &str) -> crate::Result<()>) -> Outcome {
    const ROUNDS: usize = 50;
    let contender = |volume: &dyn Substrate| -> Vec<bool> {
        (0..ROUNDS).map(|round| attempt(volume, &format!("round-{round}")).is_ok()).collect()
    };
    let contenders = [&hosts.first, &hosts.second, &hosts.first, &hosts.second];
    let contender = &contender;
    let jobs: Vec<Box<dyn FnOnce() -> Vec<bool> + Send + '_>> = contenders
        .into_iter()
        .map(|volume| {
            Box::new(move || contender(volume.as_ref())) as Box<dyn FnOnce() -> Vec<bool> + Send + '_>
        })
        .collect();
    let won: Vec<_> = at_once(jobs).into_iter().flatten().collect();
    ensure!(won.len() == 4, "a thread panicked");
    for round in 0..ROUNDS {
        let winners = won.iter().filter(|won| won.get(round) == Some(&true)).count();
        ensure!(winners == 1, "{winners} winners in round {round}");
    }
    Ok(())
}

fn one_winner(hosts: &Hosts) -> Outcome {
    contend(hosts, |volume, name| volume.open(path(name), OpenMode::CreateNew).map(|_| ()))
}

fn one_winner_of_others(hosts: &Hosts) -> Outcome {
    contend(hosts, |volume, name| volume.create_dir(path(&format!("{name}.d"))))?;
    contend(hosts, |volume, name| volume.create_records(path(&format!("{name}.r")), 1))
}

fn synced_is_seen(hosts: &Hosts) -> Outcome {
    let file = hosts.first.open(path("f"), OpenMode::CreateNew)?;
    let mut length = 0;
    for round in 1..=50u8 {
        let bytes = vec![round; 997];
        file.write_all_at(&[IoSlice::new(&bytes)], length)?;
        file.sync_data()?;
        length += 997;
        for mode in [OpenMode::ReadUncached, OpenMode::Read] {
            let seen = hosts.second.open(path("f"), mode)?;
            ensure!(
                seen.length()? == length,
                "round {round}: {mode:?}: {} of {length} bytes",
                seen.length()?
            );
            let mut last = vec![0; 997];
            let read = seen.read_at(&mut last, length - 997)?;
            ensure!(read == 997 && last == bytes, "round {round}: {mode:?}: other bytes");
        }
    }
    Ok(())
}

fn uncached_handle(hosts: &Hosts) -> Outcome {
    let file = put(hosts.first.as_ref(), "f", b"first")?;
    let seen = hosts.second.open(path("f"), OpenMode::ReadUncached)?;
    let mut buf = [0; 16];
    seen.read_at(&mut buf, 0)?;
    file.write_all_at(&[IoSlice::new(b"second, and longer")], 0)?;
    file.sync_data()?;
    ensure!(seen.length()? == 18, "its length is a cached one");
    let read = seen.read_at(&mut buf, 0)?;
    ensure!(read == 16 && &buf == b"second, and long", "its bytes are cached ones");
    Ok(())
}

fn overwritten(hosts: &Hosts) -> Outcome {
    let file = put(hosts.first.as_ref(), "f", &[0; 3000])?;
    for round in 1..=20u8 {
        for mode in [OpenMode::Read, OpenMode::ReadUncached] {
            let mut seen = [0xee; 3000];
            hosts.second.open(path("f"), mode)?.read_at(&mut seen, 0)?;
            let old = seen.iter().any(|byte| *byte != round - 1);
            ensure!(!old, "round {round}: {mode:?}: read {:?}", seen.first());
        }
        file.write_all_at(&[IoSlice::new(&[round; 3000])], 0)?;
        file.sync_data()?;
    }
    Ok(())
}

fn one_directory(hosts: &Hosts) -> Outcome {
    for (host, volume) in [("first", &hosts.first), ("second", &hosts.second)] {
        for round in 0..30 {
            volume.create_dir(path(&format!("~{host}-{round}")))?;
            put(volume.as_ref(), &format!("~{host}-{round}/of"), host.as_bytes())?;
        }
    }
    let rename = |volume: &dyn Substrate, host: &str| -> Vec<bool> {
        (0..30)
            .map(|round| {
                volume.rename(path(&format!("~{host}-{round}")), path(&format!("d-{round}"))).is_ok()
            })
            .collect()
    };
    let won = at_once(vec![
        Box::new(|| rename(hosts.first.as_ref(), "first")) as Box<dyn FnOnce() -> Vec<bool> + Send + '_>,
        Box::new(|| rename(hosts.second.as_ref(), "second")),
    ]);
    let won: Vec<_> = won.into_iter().flatten().collect();
    ensure!(won.len() == 2, "a thread panicked");
    for round in 0..30 {
        let winners: Vec<_> = ["first", "second"]
            .into_iter()
            .zip(&won)
            .filter(|(_, won)| won.get(round) == Some(&true))
            .map(|(host, _)| host)
            .collect();
        ensure!(winners.len() == 1, "round {round}: {winners:?} won");
        let found = get(hosts.first.as_ref(), &format!("d-{round}/of"))?;
        ensure!(
            winners.first().map(|host| host.as_bytes()) == Some(&found),
            "round {round}: another's is there"
        );
    }
    Ok(())
}

/// P3, as a deposed leader asks and a successor claims: both hold the file open all the time.
fn fresh_records(hosts: &Hosts) -> Outcome {
    const ROUNDS: u64 = 200;
    let record = |round: u64| {
        let mut record = [0; RECORD_BYTES];
        if let Some(place) = record.get_mut(..8) {
            place.copy_from_slice(&round.to_le_bytes());
        }
        record
    };
    hosts.first.create_records(path("r"), 1)?;
    let early = hosts.second.open_records(path("r"))?;
    let mut unused = [[1; RECORD_BYTES]];
    early.read(0, &mut unused)?;
    let longer = hosts.first.open_records(path("r"))?;
    longer.extend(ROUNDS + 1)?;
    longer.write(ROUNDS, &[record(7)])?;
    early.read(ROUNDS, &mut unused)?;
    ensure!(unused == [record(7)], "a record behind the former end is not seen");
    longer.write(ROUNDS, &[[0; RECORD_BYTES]])?;
    let (leader, successor) = (hosts.second.open_records(path("r"))?, hosts.first.open_records(path("r"))?);
    let mut seen = [[1; RECORD_BYTES]];
    for round in 1..=ROUNDS {
        leader.read(round, &mut seen)?;
        ensure!(seen == [[0; RECORD_BYTES]], "round {round}: something stands there already");
        successor.write(round, &[record(round)])?;
        leader.read(round, &mut seen)?;
        ensure!(seen == [record(round)], "round {round}: not seen");
    }
    Ok(())
}

/// P4, as a leader writes and a successor scans, which may have looked at the file before.
fn fresh_tail(hosts: &Hosts) -> Outcome {
    let leader = hosts.first.open(path("f"), OpenMode::CreateNew)?;
    let mut length = 0;
    for round in 1..=30usize {
        let bytes = vec![u8::try_from(round).unwrap_or(1); round * 611];
        leader.write_all_at(&[IoSlice::new(&bytes)], length)?;
        leader.sync_data()?;
        length += bytes.len() as u64;
        hosts.second.make_durable(path("f"), length)?;
        let successor = hosts.second.open(path("f"), OpenMode::ReadUncached)?;
        ensure!(successor.length()? == length, "round {round}: {} of {length} bytes", successor.length()?);
        let mut last = vec![0; bytes.len() + 100];
        let read = successor.read_at(&mut last, length - bytes.len() as u64)?;
        ensure!(last.get(..read) == Some(bytes.as_slice()), "round {round}: {read} bytes, or other ones");
    }
    // What a successor writes again changes nothing, and is seen by everybody.
    let again = hosts.second.open(path("f"), OpenMode::Rewrite)?;
    let before = get(hosts.first.as_ref(), "f")?;
    let part = before.get(1000..200_000).unwrap_or_default();
    again.write_all_at(&[IoSlice::new(part)], 1000)?;
    again.sync_data()?;
    ensure!(get(hosts.first.as_ref(), "f")? == before, "writing bytes again changed the file");
    Ok(())
}

fn fresh_listing(hosts: &Hosts) -> Outcome {
    hosts.first.create_dir(path("d"))?;
    for round in 0..50 {
        ensure!(hosts.second.list(path("d"))?.is_empty(), "round {round}: something is left");
        put(hosts.first.as_ref(), "d/a", b"")?;
        ensure!(names_in(hosts.second.as_ref(), "d")? == ["a"], "round {round}: a creation is not seen");
        hosts.first.rename(path("d/a"), path("d/b"))?;
        ensure!(names_in(hosts.second.as_ref(), "d")? == ["b"], "round {round}: a rename is not seen");
        ensure_fails("create the new name", hosts.second.open(path("d/b"), OpenMode::CreateNew), Exists)?;
        hosts.second.remove_file(path("d/b"))?;
        ensure!(hosts.first.list(path("d"))?.is_empty(), "round {round}: a removal is not seen");
    }
    Ok(())
}

fn early_lookup(hosts: &Hosts) -> Outcome {
    hosts.first.create_dir(path("d"))?;
    ensure_fails("too early", hosts.second.open(path("d/f"), OpenMode::Read), NotFound)?;
    put(hosts.first.as_ref(), "d/f", b"x")?;
    ensure!(names_in(hosts.second.as_ref(), "d")? == ["f"], "the listing does not have it");
    ensure!(get(hosts.second.as_ref(), "d/f")? == b"x", "it is listed and cannot be opened");
    Ok(())
}
