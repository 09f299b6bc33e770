//! A disk of one host.

use super::*;
use kaas_fault_injection::faulty::{Point, Rule, Rules, Verdict};
use kaas_fault_injection::simulated::seeded;

fn local(choose: Choose) -> (Simulation, Arc<dyn Substrate>) {
    let simulation = Simulation::new(Profile::local(), choose);
    let volume = simulation.host(0);
    (simulation, volume)
}

#[test]
fn what_was_synced_is_always_there() {
    for seed in 0..50 {
        let (simulation, volume) = local(seeded(seed));
        let file = put(&*volume, "f", &[1; 1500]);
        volume.sync_dir(path("")).unwrap();
        write(&*file, &[2; 600], 1500);
        simulation.crash_host(0);
        let found = fresh(&*simulation.host(0), "f").unwrap();
        assert_eq!(found[..1500], [1; 1500]);
        assert!(found[1500..].iter().all(|byte| [0, 2].contains(byte)));
    }
}

#[test]
fn a_file_without_a_sync_of_its_directory_is_lost() {
    let (simulation, volume) = local(tame());
    put(&*volume, "f", b"x");
    simulation.crash_host(0);
    assert_eq!(fresh(&*simulation.host(0), "f"), Err(ErrorClass::NotFound));
}

#[test]
fn any_number_of_the_last_changes_of_a_directory_is_lost() {
    let mut found = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let (simulation, volume) = local(seeded(seed));
        put(&*volume, "a", b"a");
        volume.sync_dir(path("")).unwrap();
        put(&*volume, "b", b"b");
        volume.rename(path("a"), path("c")).unwrap();
        volume.remove_file(path("b")).unwrap();
        simulation.crash_host(0);
        found.insert(names(&*simulation.host(0), "").concat());
    }
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["a", "ab", "bc", "c"]);
}

#[test]
fn what_was_not_synced_is_lost_sector_by_sector() {
    let mut found = std::collections::BTreeSet::new();
    for seed in 0..400 {
        let (simulation, volume) = local(seeded(seed));
        let file = put(&*volume, "f", &[1; 1536]);
        volume.sync_dir(path("")).unwrap();
        write(&*file, &[2; 1024], 256);
        simulation.crash_host(0);
        let bytes = fresh(&*simulation.host(0), "f").unwrap();
        assert_eq!((bytes.len(), bytes[255], bytes[1280]), (1536, 1, 1));
        let parts = [&bytes[256..512], &bytes[512..1024], &bytes[1024..1280]];
        found.insert(parts.map(|part| {
            assert!(part.iter().all(|byte| *byte == part[0]), "torn within a sector");
            part[0]
        }));
    }
    assert_eq!(found.len(), 8, "{found:?}");
}

#[test]
fn a_length_that_was_set_is_durable_after_a_sync() {
    for (synced, left) in [(true, 3), (false, 6)] {
        let (simulation, volume) = local(tame());
        let file = put(&*volume, "f", b"abcdef");
        volume.sync_dir(path("")).unwrap();
        file.set_length(3).unwrap();
        if synced {
            file.sync_data().unwrap();
        }
        simulation.crash_host(0);
        assert_eq!(fresh(&*simulation.host(0), "f").unwrap().len(), left);
    }
}

#[test]
fn a_killed_process_loses_nothing_and_the_next_one_makes_it_durable() {
    let (simulation, volume) = local(tame());
    volume.sync_dir(path("")).unwrap();
    drop(create(&*volume, "f", b"written"));
    volume.sync_dir(path("")).unwrap();
    let next = simulation.host(0);
    assert_eq!(fresh(&*next, "f").unwrap(), b"written");
    next.make_durable(path("f"), 7).unwrap();
    simulation.crash_host(0);
    assert_eq!(fresh(&*simulation.host(0), "f").unwrap(), b"written");
}

#[test]
fn handles_do_not_survive_their_host() {
    let (simulation, volume) = local(tame());
    let file = put(&*volume, "f", b"x");
    simulation.crash_host(0);
    simulation.host(0);
    assert_eq!(file.sync_data().unwrap_err().class, ErrorClass::Io);
    assert_eq!(volume.list(path("")).unwrap_err().class, ErrorClass::Io);
}

#[test]
fn dirty_pages_are_written_when_they_are_old() {
    let (simulation, volume) = local(tame());
    let _file = create(&*volume, "f", b"written");
    volume.sync_dir(path("")).unwrap();
    simulation.advance(30_000);
    simulation.crash_host(0);
    assert_eq!(fresh(&*simulation.host(0), "f").unwrap(), b"written");
}

#[test]
fn a_failed_sync_leaves_pages_that_read_well_and_are_not_stored() {
    let (simulation, volume) = local(tame());
    let file = put(&*volume, "f", b"old bytes");
    volume.sync_dir(path("")).unwrap();
    let rule = Rule::nth(Point::SyncData, 1, Verdict::Fail(ErrorClass::Io)).on("f");
    simulation.fail_syncs(Rules::new([rule]));
    write(&*file, b"new", 0);
    assert_eq!(file.sync_data().unwrap_err().class, ErrorClass::Io);
    // The cache says that all is well, and so does the next sync.
    assert_eq!(content(&*volume, "f", OpenMode::Read).unwrap(), b"new bytes");
    file.sync_data().unwrap();
    // What was written after it is stored.
    write(&*file, b"BYTES", 4);
    file.sync_data().unwrap();
    assert_eq!(content(&*volume, "f", OpenMode::Read).unwrap(), b"new BYTES");
    // The disk has something else.
    assert_eq!(fresh(&*volume, "f").unwrap(), b"old BYTES");
    simulation.crash_host(0);
    assert_eq!(fresh(&*simulation.host(0), "f").unwrap(), b"old BYTES");
}

#[test]
fn every_open_handle_is_told_of_a_failed_sync_once() {
    let (simulation, volume) = local(tame());
    let [first, second] = [put(&*volume, "f", b"old"), volume.open(path("f"), OpenMode::Write).unwrap()];
    let other = put(&*volume, "other", b"");
    simulation.fail_syncs(Rules::new([Rule::nth(Point::SyncData, 1, Verdict::Fail(ErrorClass::NoSpace))]));
    write(&*first, b"new", 0);
    assert_eq!(second.sync_data().unwrap_err().class, ErrorClass::NoSpace);
    // Who wrote it finds out, though somebody else has asked before.
    assert_eq!(first.sync_data().unwrap_err().class, ErrorClass::NoSpace);
    for file in [&first, &second, &other, &volume.open(path("f"), OpenMode::Write).unwrap()] {
        file.sync_data().unwrap();
    }
}

#[test]
fn make_durable_shows_what_a_failed_sync_did_not_store() {
    let (simulation, volume) = local(tame());
    let file = put(&*volume, "f", b"old");
    simulation.fail_syncs(Rules::new([Rule::nth(Point::SyncData, 1, Verdict::Fail(ErrorClass::Io))]));
    write(&*file, b"new", 0);
    file.sync_data().unwrap_err();
    volume.make_durable(path("f"), 3).unwrap();
    assert_eq!(content(&*volume, "f", OpenMode::Read).unwrap(), b"old");
}
