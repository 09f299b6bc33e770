//! CephFS with its kernel client.

use super::*;

#[test]
fn another_host_sees_what_was_only_written() {
    for mode in [OpenMode::Read, OpenMode::ReadUncached] {
        let (_, a, b) = two(Profile::cephfs(), wild());
        let _file = create(&*a, "f", b"dirty");
        assert_eq!(content(&*b, "f", mode).unwrap(), b"dirty");
    }
}

#[test]
fn a_held_handle_sees_what_was_only_written() {
    let (_, a, b) = two(Profile::cephfs(), wild());
    let file = put(&*a, "f", b"one");
    let held = b.open(path("f"), OpenMode::Read).unwrap();
    assert_eq!(read(&*held), b"one");
    write(&*file, b"two, longer", 0);
    assert_eq!((held.length().unwrap(), read(&*held)), (11, b"two, longer".to_vec()));
    file.set_length(3).unwrap();
    assert_eq!(read(&*held), b"two");
}

#[test]
fn names_are_fresh() {
    let (_, a, b) = two(Profile::cephfs(), wild());
    assert_eq!(fresh(&*b, "f"), Err(ErrorClass::NotFound));
    put(&*a, "f", b"old");
    assert_eq!(fresh(&*b, "f").unwrap(), b"old");
    put(&*a, "next", b"new");
    a.rename(path("next"), path("f")).unwrap();
    assert_eq!(fresh(&*b, "f").unwrap(), b"new");
}

#[test]
fn the_dirty_pages_of_a_silent_host_are_waited_for() {
    let (simulation, a, b) = two(Profile::cephfs(), tame());
    let file = put(&*a, "f", b"x");
    write(&*file, b"y", 0);
    simulation.cut_off(0);
    assert_eq!(fresh(&*b, "f"), Err(ErrorClass::Retriable), "it would not return");
    simulation.heal(0);
    assert_eq!(fresh(&*b, "f").unwrap(), b"y");
}

#[test]
fn a_host_that_is_silent_for_too_long_is_refused_for_good() {
    let (simulation, a, b) = two(Profile::cephfs(), tame());
    let file = put(&*a, "f", b"x");
    write(&*file, b"y", 0);
    simulation.cut_off(0);
    simulation.advance(60_000);
    assert_eq!(fresh(&*b, "f").unwrap(), b"x");
    simulation.heal(0);
    assert!(!simulation.write_back(0), "its write never lands");
    let refused =
        |outcome: kaas_substrate::Result<()>| assert_eq!(outcome.unwrap_err().class, ErrorClass::Fenced);
    refused(a.list(path("")).map(|_| ()));
    refused(file.write_all_at(&[IoSlice::new(b"z")], 0));
    refused(file.read_at(&mut [0], 0).map(|_| ()));
    refused(file.sync_data());
    simulation.crash_host(0);
    assert_eq!(fresh(&*simulation.host(0), "f").unwrap(), b"x", "until it starts anew");
}

#[test]
fn a_host_that_is_back_in_time_goes_on() {
    let (simulation, a, b) = two(Profile::cephfs(), tame());
    let file = put(&*a, "f", b"x");
    write(&*file, b"y", 0);
    simulation.cut_off(0);
    simulation.advance(59_999);
    simulation.heal(0);
    file.sync_data().unwrap();
    assert_eq!(fresh(&*b, "f").unwrap(), b"y");
}

#[test]
fn names_that_were_not_synced_go_with_their_host_and_the_servers() {
    let (simulation, a, _) = two(Profile::cephfs(), tame());
    put(&*a, "synced", b"x");
    a.sync_dir(path("")).unwrap();
    put(&*a, "f", b"x");
    simulation.crash_server();
    simulation.start_server();
    assert_eq!(names(&*a, ""), ["f", "synced"], "its host is alive and makes it again");
    put(&*a, "g", b"x");
    simulation.lose_power();
    assert_eq!(names(&*simulation.host(1), ""), ["f", "synced"]);
}

#[test]
fn synced_bytes_survive_the_loss_of_everything_and_others_may_not() {
    let (simulation, a, _) = two(Profile::cephfs(), tame());
    let file = put(&*a, "f", b"kept");
    a.sync_dir(path("")).unwrap();
    write(&*file, b" lost", 4);
    simulation.lose_power();
    assert_eq!(fresh(&*simulation.host(1), "f").unwrap(), b"kept");
}

#[test]
fn a_removed_file_is_usable_while_it_is_open() {
    let (simulation, a, b) = two(Profile::cephfs(), tame());
    let file = put(&*a, "f", b"x");
    let held = b.open(path("f"), OpenMode::Write).unwrap();
    a.remove_file(path("f")).unwrap();
    a.sync_dir(path("")).unwrap();
    simulation.crash_server();
    simulation.start_server();
    write(&*held, b"y", 0);
    held.sync_data().unwrap();
    assert_eq!((read(&*file), read(&*held)), (b"y".to_vec(), b"y".to_vec()));
    assert_eq!(names(&*b, "").len(), 0);
}

#[test]
fn dirty_pages_are_sent_when_they_are_old() {
    let (simulation, a, b) = two(Profile::cephfs(), tame());
    let file = put(&*a, "f", b"x");
    a.sync_dir(path("")).unwrap();
    write(&*file, b"y", 0);
    simulation.advance(5_000);
    simulation.crash_host(0);
    assert_eq!(fresh(&*b, "f").unwrap(), b"y");
}

/// ceph-fuse with its default page cache: what is read by opening it again may be as old as one likes.
#[test]
fn a_client_that_is_not_coherent_reads_old_bytes_except_past_its_cache() {
    let an_hour_ms = 3_600_000;
    let fuse =
        Profile { coherent: false, opens_revalidate: false, attributes_ms: an_hour_ms, ..Profile::cephfs() };
    let (simulation, a, b) = two(fuse, tame());
    let file = put(&*a, "f", b"old");
    let held = b.open(path("f"), OpenMode::Read).unwrap();
    assert_eq!(read(&*held), b"old");
    write(&*file, b"new", 0);
    file.sync_data().unwrap();
    simulation.advance(40_000);
    assert_eq!(
        (read(&*held), content(&*b, "f", OpenMode::Read).unwrap()),
        (b"old".to_vec(), b"old".to_vec())
    );
    assert_eq!(fresh(&*b, "f").unwrap(), b"new");
}
