//! What one NFS client sees, and when, of what another does (kernel client, default mount options).

use super::*;

#[test]
fn an_absent_name_stays_absent_for_30_s() {
    for mode in [OpenMode::Read, OpenMode::ReadUncached, OpenMode::Write] {
        let (simulation, a, b) = two(Profile::nfs(), tame());
        assert_eq!(content(&*b, "f", mode), Err(ErrorClass::NotFound));
        put(&*a, "f", b"x");
        simulation.advance(29_900);
        assert_eq!(content(&*b, "f", mode), Err(ErrorClass::NotFound), "{mode:?}");
        simulation.advance(100);
        assert_eq!(content(&*b, "f", mode).unwrap(), b"x", "{mode:?}");
    }
}

#[test]
fn so_do_names_in_a_directory_that_was_absent() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    assert_eq!(fresh(&*b, "d/f"), Err(ErrorClass::NotFound));
    a.create_dir(path("d")).unwrap();
    put(&*a, "d/f", b"x");
    assert_eq!(fresh(&*b, "d/f"), Err(ErrorClass::NotFound));
    simulation.advance(30_000);
    assert_eq!(fresh(&*b, "d/f").unwrap(), b"x");
}

#[test]
fn listing_the_directory_shows_an_absent_name() {
    let (_, a, b) = two(Profile::nfs(), wild());
    assert_eq!(fresh(&*b, "f"), Err(ErrorClass::NotFound));
    put(&*a, "f", b"x");
    assert_eq!(names(&*b, ""), ["f"]);
    assert_eq!(fresh(&*b, "f").unwrap(), b"x");
}

#[test]
fn an_exclusive_create_asks_the_server_about_an_absent_name() {
    let (_, a, b) = two(Profile::nfs(), wild());
    assert_eq!(fresh(&*b, "f"), Err(ErrorClass::NotFound));
    put(&*a, "f", b"x");
    assert_eq!(content(&*b, "f", OpenMode::CreateNew), Err(ErrorClass::Exists));
    assert_eq!(fresh(&*b, "f").unwrap(), b"x");
}

#[test]
fn a_renamed_or_removed_name_is_absent_for_its_own_host() {
    let (_, a, b) = two(Profile::nfs(), tame());
    put(&*a, "f", b"1");
    a.rename(path("f"), path("g")).unwrap();
    put(&*b, "f", b"2");
    assert_eq!(fresh(&*a, "f"), Err(ErrorClass::NotFound));
    assert_eq!(names(&*a, ""), ["f", "g"]);
    assert_eq!(fresh(&*a, "f").unwrap(), b"2");
}

#[test]
fn a_name_that_was_replaced_elsewhere_may_open_the_old_file() {
    for (choose, seen) in [(tame(), b"new"), (wild(), b"old")] {
        let (simulation, a, b) = two(Profile::nfs(), choose);
        put(&*a, "f", b"old");
        assert_eq!(content(&*b, "f", OpenMode::Read).unwrap(), b"old");
        put(&*a, "next", b"new");
        a.rename(path("next"), path("f")).unwrap();
        assert_eq!(content(&*b, "f", OpenMode::Read).unwrap(), seen);
        simulation.advance(30_000);
        assert_eq!(content(&*b, "f", OpenMode::Read).unwrap(), b"new");
    }
}

#[test]
fn a_name_that_was_renamed_away_may_still_open() {
    for (choose, seen) in [(tame(), Err(ErrorClass::NotFound)), (wild(), Ok(b"x".to_vec()))] {
        let (_, a, b) = two(Profile::nfs(), choose);
        put(&*a, "f", b"x");
        fresh(&*b, "f").unwrap();
        a.rename(path("f"), path("g")).unwrap();
        assert_eq!(fresh(&*b, "f"), seen);
    }
}

#[test]
fn a_directory_that_was_renamed_away_may_still_be_entered() {
    let (simulation, a, b) = two(Profile::nfs(), wild());
    a.create_dir(path("t")).unwrap();
    put(&*a, "t/f", b"old");
    fresh(&*b, "t/f").unwrap();
    a.rename(path("t"), path("gone")).unwrap();
    a.create_dir(path("t")).unwrap();
    put(&*b, "t/late", b"");
    assert_eq!((names(&*a, "gone"), names(&*a, "t").len()), (vec!["f".to_owned(), "late".to_owned()], 0));
    simulation.advance(30_000);
    assert_eq!(names(&*b, "t").len(), 0);
}

#[test]
fn a_directory_that_was_removed_is_looked_up_again() {
    let (_, a, b) = two(Profile::nfs(), wild());
    a.create_dir(path("t")).unwrap();
    assert_eq!(fresh(&*b, "t/f"), Err(ErrorClass::NotFound));
    a.remove_dir(path("t")).unwrap();
    assert_eq!(b.list(path("t")).unwrap_err().class, ErrorClass::NotFound);
}

#[test]
fn a_listing_is_fresh() {
    let (_, a, b) = two(Profile::nfs(), wild());
    for name in ["f", "g", "h"] {
        put(&*a, name, b"");
        assert_eq!(names(&*b, ""), [name]);
        a.remove_file(path(name)).unwrap();
        assert_eq!(names(&*b, "").len(), 0);
    }
}

#[test]
fn what_was_synced_is_seen_by_a_fresh_open() {
    for mode in [OpenMode::Read, OpenMode::ReadUncached] {
        let (_, a, b) = two(Profile::nfs(), wild());
        let file = put(&*a, "f", b"one");
        assert_eq!(content(&*b, "f", mode).unwrap(), b"one");
        write(&*file, b"two, longer", 0);
        file.sync_data().unwrap();
        assert_eq!(content(&*b, "f", mode).unwrap(), b"two, longer", "{mode:?}");
    }
}

#[test]
fn what_was_closed_is_seen_by_a_fresh_open() {
    let (_, a, b) = two(Profile::nfs(), tame());
    let file = put(&*a, "f", b"one");
    write(&*file, b"two", 0);
    assert_eq!(fresh(&*b, "f").unwrap(), b"one");
    drop(file);
    assert_eq!(fresh(&*b, "f").unwrap(), b"two");
}

#[test]
fn what_was_only_written_is_seen_seconds_later() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    let _file = create(&*a, "f", b"x");
    assert_eq!(fresh(&*b, "f").unwrap(), b"");
    simulation.advance(12_999);
    assert_eq!(fresh(&*b, "f").unwrap(), b"");
    simulation.advance(1);
    assert_eq!(fresh(&*b, "f").unwrap(), b"x");
}

#[test]
fn dirty_pages_are_seen_in_any_order() {
    let mut found = std::collections::BTreeSet::new();
    for seed in 0..100 {
        let (simulation, a, b) = two(Profile::nfs(), kaas_fault_injection::simulated::seeded(seed));
        let file = put(&*a, "f", &[1; 3 * 4096]);
        write(&*file, &[2; 3 * 4096], 0);
        assert!(simulation.write_back(0));
        let bytes = fresh(&*b, "f").unwrap();
        found.insert([bytes[0], bytes[4096], bytes[8192]]);
        for _ in 0..100 {
            simulation.write_back(0);
        }
        assert!(!simulation.write_back(0), "nothing is left");
        assert_eq!(fresh(&*b, "f").unwrap(), [2; 3 * 4096]);
    }
    assert!(found.contains(&[1, 1, 2]) && found.contains(&[2, 1, 1]), "{found:?}");
}

#[test]
fn a_held_handle_lags_3_s_behind() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    let file = put(&*a, "f", b"one");
    let held = b.open(path("f"), OpenMode::Read).unwrap();
    assert_eq!(read(&*held), b"one");
    write(&*file, b"four", 0);
    file.sync_data().unwrap();
    simulation.advance(2_999);
    assert_eq!((read(&*held), held.length().unwrap()), (b"one".to_vec(), 3));
    simulation.advance(1);
    assert_eq!((read(&*held), held.length().unwrap()), (b"four".to_vec(), 4));
}

#[test]
fn a_held_uncached_handle_does_not() {
    let (_, a, b) = two(Profile::nfs(), wild());
    let file = put(&*a, "f", b"one");
    let held = b.open(path("f"), OpenMode::ReadUncached).unwrap();
    assert_eq!(read(&*held), b"one");
    write(&*file, b"four", 0);
    file.sync_data().unwrap();
    assert_eq!((read(&*held), held.length().unwrap()), (b"four".to_vec(), 4));
}

#[test]
fn pages_that_were_dropped_are_read_again_beside_old_ones() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    let file = put(&*a, "f", &[1; 2 * 4096]);
    let held = b.open(path("f"), OpenMode::Read).unwrap();
    held.read_at(&mut [0; 4096], 0).unwrap();
    write(&*file, &[2; 2 * 4096], 0);
    file.sync_data().unwrap();
    let bytes = read(&*held);
    assert_eq!((bytes[4095], bytes[4096]), (1, 2), "a mixture, within the 3 s");
    simulation.drop_caches(1);
    assert_eq!(read(&*held), [2; 2 * 4096]);
}

#[test]
fn processes_of_one_host_share_its_cache() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    let _file = create(&*a, "f", b"dirty");
    assert_eq!(content(&*simulation.host(0), "f", OpenMode::Read).unwrap(), b"dirty");
    assert_eq!(fresh(&*b, "f").unwrap(), b"");
}

#[test]
fn a_record_is_seen_at_once() {
    let (_, a, b) = two(Profile::nfs(), wild());
    a.create_records(path("r"), 4).unwrap();
    let (ours, theirs) = (a.open_records(path("r")).unwrap(), b.open_records(path("r")).unwrap());
    for fill in 1..50 {
        let mut records = [[0; 512]; 2];
        theirs.read(1, &mut records).unwrap();
        ours.write(1, &[[fill; 512]]).unwrap();
        theirs.read(1, &mut records).unwrap();
        assert_eq!(records, [[fill; 512], [0; 512]]);
    }
}

#[test]
fn a_file_removed_by_its_own_host_lives_under_another_name_until_it_is_closed() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    a.create_dir(path("d")).unwrap();
    let file = put(&*a, "d/f", b"x");
    // Another process of that host removes it.
    simulation.host(0).remove_file(path("d/f")).unwrap();
    assert_eq!(names(&*b, "d").len(), 0);
    assert_eq!(b.remove_dir(path("d")).unwrap_err().class, ErrorClass::Invalid, "not empty");
    simulation.crash_server();
    simulation.start_server();
    assert_eq!(read(&*file), b"x", "it survives the server's restart");
    drop(file);
    b.remove_dir(path("d")).unwrap();
}

#[test]
fn a_file_removed_by_another_host_is_stale_after_the_servers_restart() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    put(&*a, "f", b"x");
    let held = b.open(path("f"), OpenMode::Write).unwrap();
    a.remove_file(path("f")).unwrap();
    write(&*held, b"y", 0);
    held.sync_data().unwrap();
    assert_eq!(read(&*held), b"y", "until then it is usable");
    simulation.crash_server();
    simulation.start_server();
    assert_eq!(held.read_at(&mut [0], 0).unwrap_err().class, ErrorClass::Stale);
    assert_eq!(held.write_all_at(&[IoSlice::new(b"z")], 0).unwrap_err().class, ErrorClass::Stale);
    assert_eq!(held.sync_data().unwrap_err().class, ErrorClass::Stale);
}

#[test]
fn a_handle_follows_its_file_and_not_its_name() {
    let (_, a, b) = two(Profile::nfs(), tame());
    put(&*a, "f", b"1");
    put(&*a, "g", b"2");
    let held = b.open(path("f"), OpenMode::Write).unwrap();
    a.rename(path("f"), path("moved")).unwrap();
    a.rename(path("g"), path("f")).unwrap();
    write(&*held, b"late", 0);
    held.sync_data().unwrap();
    assert_eq!((fresh(&*a, "moved").unwrap(), fresh(&*a, "f").unwrap()), (b"late".to_vec(), b"2".to_vec()));
}

#[test]
fn appends_of_two_hosts_overwrite_each_other() {
    let (_, a, b) = two(Profile::nfs(), tame());
    let file = put(&*a, "f", b"");
    let other = b.open(path("f"), OpenMode::Write).unwrap();
    write(&*file, b"aa", file.length().unwrap());
    write(&*other, b"b", other.length().unwrap());
    file.sync_data().unwrap();
    other.sync_data().unwrap();
    assert_eq!(fresh(&*a, "f").unwrap(), b"ba");
}

#[test]
fn the_rest_of_a_page_may_be_sent_with_what_was_written() {
    for (choose, seen) in [(tame(), b"Xbc"), (wild(), b"XBC")] {
        let (_, a, b) = two(Profile::nfs(), choose);
        put(&*b, "f", b"ABC");
        let held = a.open(path("f"), OpenMode::Write).unwrap();
        assert_eq!(read(&*held), b"ABC");
        let other = b.open(path("f"), OpenMode::Write).unwrap();
        write(&*other, b"abc", 0);
        other.sync_data().unwrap();
        write(&*held, b"X", 0);
        held.sync_data().unwrap();
        assert_eq!(fresh(&*b, "f").unwrap(), seen);
    }
}

#[test]
fn rewriting_sends_exactly_what_is_written() {
    let (_, a, b) = two(Profile::nfs(), wild());
    put(&*b, "f", b"ABC");
    let again = a.open(path("f"), OpenMode::Rewrite).unwrap();
    assert_eq!(content(&*a, "f", OpenMode::Read).unwrap(), b"ABC");
    let other = b.open(path("f"), OpenMode::Write).unwrap();
    write(&*other, b"abc", 0);
    other.sync_data().unwrap();
    write(&*again, b"X", 0);
    assert_eq!(fresh(&*b, "f").unwrap(), b"Xbc");
}

#[test]
fn a_failed_sync_leaves_pages_that_read_well_and_were_never_sent() {
    use kaas_fault_injection::faulty::{Point, Rule, Rules, Verdict};
    let (simulation, a, b) = two(Profile::nfs(), tame());
    let file = put(&*a, "f", b"old");
    simulation.fail_syncs(Rules::new([Rule::nth(Point::SyncData, 1, Verdict::Fail(ErrorClass::NoSpace))]));
    write(&*file, b"new", 0);
    assert_eq!(file.sync_data().unwrap_err().class, ErrorClass::NoSpace);
    file.sync_data().unwrap();
    assert_eq!(content(&*a, "f", OpenMode::Read).unwrap(), b"new", "as the host's cache has it");
    assert_eq!((fresh(&*a, "f").unwrap(), fresh(&*b, "f").unwrap()), (b"old".to_vec(), b"old".to_vec()));
}

#[test]
fn a_file_replaced_by_its_own_host_lives_on_as_well() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    let file = put(&*a, "f", b"old");
    put(&*a, "next", b"new");
    a.rename(path("next"), path("f")).unwrap();
    assert_eq!(names(&*b, ""), ["f"]);
    simulation.crash_server();
    simulation.start_server();
    assert_eq!((read(&*file), fresh(&*b, "f").unwrap()), (b"old".to_vec(), b"new".to_vec()));
}

#[test]
fn a_host_that_finds_its_file_changed_by_another_reads_it_again() {
    let (_, a, b) = two(Profile::nfs(), tame());
    let file = put(&*a, "f", b"ours");
    assert_eq!(read(&*file), b"ours");
    let theirs = b.open(path("f"), OpenMode::Write).unwrap();
    write(&*theirs, b"his!", 0);
    theirs.sync_data().unwrap();
    assert_eq!(read(&*file), b"ours");
    write(&*file, b"H", 0);
    file.sync_data().unwrap();
    assert_eq!(read(&*file), b"His!", "what it sent has told it");
}
