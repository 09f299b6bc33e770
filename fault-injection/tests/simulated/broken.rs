//! Each property of the substrate, broken on purpose: what an honest volume would not have done is done.

use super::*;
use kaas_fault_injection::simulated::{Broken, seeded};
use std::collections::BTreeSet;

fn broken(profile: Profile, broken: Broken) -> Profile {
    profile.breaking(broken)
}

#[test]
fn p1_others_see_both_names_of_a_rename_or_neither() {
    let rename = Broken { rename: true, ..Broken::NOTHING };
    for profile in [Profile::nfs(), Profile::cephfs()] {
        let mut found = BTreeSet::new();
        for seed in 0..50 {
            let (_, a, b) = two(broken(profile.clone(), rename), seeded(seed));
            put(&*a, "f", b"x");
            a.rename(path("f"), path("g")).unwrap();
            found.insert(names(&*b, "").concat());
            assert_eq!(names(&*a, ""), ["g"], "the renamer sees it done");
            assert_eq!(names(&*b, ""), ["g"], "and others, after its next call");
        }
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["", "fg"]);
    }
}

#[test]
fn p1_a_crash_leaves_a_rename_half_done() {
    let rename = Broken { rename: true, ..Broken::NOTHING };
    for profile in [Profile::local(), Profile::nfs()] {
        for (rename, half_done) in [(rename, true), (Broken::NOTHING, false)] {
            let mut found = BTreeSet::new();
            for seed in 0..100 {
                let simulation = Simulation::new(broken(profile.clone(), rename), seeded(seed));
                let a = simulation.host(0);
                put(&*a, "f", b"x");
                a.sync_dir(path("")).unwrap();
                a.rename(path("f"), path("g")).unwrap();
                simulation.lose_power();
                found.insert(names(&*simulation.host(0), "").concat());
            }
            assert_eq!(found.contains("fg") && found.contains(""), half_done, "{found:?}");
        }
    }
}

#[test]
fn p2_an_exclusive_create_has_two_winners() {
    for (exclusive_create, winners) in [(true, 2), (false, 1)] {
        let profile = broken(Profile::nfs(), Broken { exclusive_create, ..Broken::NOTHING });
        let (_, a, b) = two(profile, wild());
        let won = [&a, &b].map(|volume| volume.open(path("f"), OpenMode::CreateNew).is_ok());
        assert_eq!(won.into_iter().filter(|won| *won).count(), winners);
    }
}

#[test]
fn p3_a_record_that_was_written_is_not_seen() {
    for profile in [Profile::nfs(), Profile::cephfs()] {
        for (uncached_read, seen) in [(true, 0), (false, 7)] {
            let profile = broken(profile.clone(), Broken { uncached_read, ..Broken::NOTHING });
            let (simulation, a, b) = two(profile, tame());
            a.create_records(path("r"), 1).unwrap();
            let (ours, theirs) = (a.open_records(path("r")).unwrap(), b.open_records(path("r")).unwrap());
            let mut records = [[9; 512]];
            theirs.read(0, &mut records).unwrap();
            ours.write(0, &[[7; 512]]).unwrap();
            theirs.read(0, &mut records).unwrap();
            assert_eq!(records, [[seen; 512]]);
            b.open_records(path("r")).unwrap().read(0, &mut records).unwrap();
            assert_eq!(records, [[seen; 512]], "nor by opening it again");
            simulation.advance(3_000);
            theirs.read(0, &mut records).unwrap();
            assert_eq!(records, [[7; 512]]);
        }
    }
}

#[test]
fn p4_what_was_synced_is_lost() {
    for profile in [Profile::local(), Profile::nfs(), Profile::cephfs()] {
        for (sync, is_lost) in [(true, true), (false, false)] {
            let simulation =
                Simulation::new(broken(profile.clone(), Broken { sync, ..Broken::NOTHING }), tame());
            let a = simulation.host(0);
            put(&*a, "f", b"x");
            a.sync_dir(path("")).unwrap();
            a.create_records(path("r"), 1).unwrap();
            a.sync_tree(path("")).unwrap();
            simulation.lose_power();
            assert_eq!(names(&*simulation.host(0), "").is_empty(), is_lost, "{profile:?}");
        }
    }
}

#[test]
fn p4_a_record_that_was_written_is_lost() {
    for profile in [Profile::local(), Profile::nfs(), Profile::cephfs()] {
        for (sync, left) in [(true, 0), (false, 7)] {
            let simulation = Simulation::new(profile.clone().breaking(Broken::NOTHING), tame());
            let a = simulation.host(0);
            a.create_records(path("r"), 1).unwrap();
            a.sync_tree(path("")).unwrap();
            simulation.change_profile(|profile| profile.broken.sync = sync);
            a.open_records(path("r")).unwrap().write(0, &[[7; 512]]).unwrap();
            simulation.lose_power();
            let mut records = [[9; 512]];
            simulation.host(0).open_records(path("r")).unwrap().read(0, &mut records).unwrap();
            assert_eq!(records, [[left; 512]], "{profile:?}");
        }
    }
}

#[test]
fn p4_an_async_server_forgets_what_live_hosts_have_synced() {
    let (simulation, a, b) = two(broken(Profile::nfs(), Broken { sync: true, ..Broken::NOTHING }), tame());
    let file = put(&*a, "f", b"x");
    assert_eq!(fresh(&*b, "f").unwrap(), b"x");
    simulation.crash_server();
    simulation.start_server();
    assert_eq!(names(&*b, "").len(), 0, "nobody sends it again");
    assert_eq!(file.sync_data().unwrap_err().class, ErrorClass::Stale);
}

#[test]
fn p4_a_fresh_open_sees_a_short_length_without_close_to_open() {
    let profile = Profile { opens_revalidate: false, ..Profile::nfs() };
    let (simulation, a, b) = two(profile, tame());
    let file = put(&*a, "f", b"one");
    assert_eq!(content(&*b, "f", OpenMode::Read).unwrap(), b"one");
    write(&*file, b"longer", 0);
    file.sync_data().unwrap();
    assert_eq!(content(&*b, "f", OpenMode::Read).unwrap(), b"one");
    simulation.advance(3_000);
    assert_eq!(content(&*b, "f", OpenMode::Read).unwrap(), b"longer");
}

#[test]
fn each_cache_can_be_switched_off() {
    let profile = Profile { absent_name_ms: 0, known_name_ms: 0, attributes_ms: 0, ..Profile::nfs() };
    let (_, a, b) = two(profile, wild());
    assert_eq!(fresh(&*b, "f"), Err(ErrorClass::NotFound));
    let file = put(&*a, "f", b"one");
    let held = b.open(path("f"), OpenMode::Read).unwrap();
    assert_eq!(read(&*held), b"one");
    write(&*file, b"longer", 0);
    file.sync_data().unwrap();
    assert_eq!(read(&*held), b"longer");
    put(&*a, "next", b"new");
    a.rename(path("next"), path("f")).unwrap();
    assert_eq!(fresh(&*b, "f").unwrap(), b"new");
}
