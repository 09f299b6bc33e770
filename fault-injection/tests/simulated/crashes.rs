//! NFS: what a loss of power of a host, of the server, or of both leaves.

use super::*;
use kaas_fault_injection::simulated::seeded;

fn restart(simulation: &Simulation) {
    simulation.crash_server();
    simulation.start_server();
}

#[test]
fn a_crashed_host_loses_any_sectors_that_it_had_not_synced() {
    let mut found = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let (simulation, a, b) = two(Profile::nfs(), seeded(seed));
        let file = put(&*a, "f", &[1; 1024]);
        write(&*file, &[2; 1024], 0);
        simulation.crash_host(0);
        let bytes = fresh(&*b, "f").unwrap();
        found.insert([bytes[0], bytes[511], bytes[512], bytes[1023]]);
    }
    assert_eq!(
        found.into_iter().collect::<Vec<_>>(),
        [[1, 1, 1, 1], [1, 1, 2, 2], [2, 2, 1, 1], [2, 2, 2, 2]]
    );
}

#[test]
fn names_are_durable_without_a_sync_of_their_directory() {
    let (simulation, a, _) = two(Profile::nfs(), tame());
    put(&*a, "f", b"x");
    a.rename(path("f"), path("g")).unwrap();
    a.create_dir(path("d")).unwrap();
    simulation.lose_power();
    let b = simulation.host(1);
    assert_eq!(
        (names(&*b, ""), fresh(&*b, "g").unwrap()),
        (vec!["d".to_owned(), "g".to_owned()], b"x".to_vec())
    );
}

#[test]
fn what_a_killed_process_wrote_stays_with_its_host() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    let file = put(&*a, "f", b"old");
    write(&*file, b"new", 0);
    // Killed: the kernel closes its files.
    drop((file, a));
    assert_eq!(fresh(&*b, "f").unwrap(), b"new");
    simulation.crash_server();
    simulation.start_server();
    simulation.host(0).make_durable(path("f"), 3).unwrap();
    assert_eq!(fresh(&*b, "f").unwrap(), b"new", "sent again");
}

#[test]
fn a_server_that_restarts_is_sent_again_what_was_not_committed() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    let file = create(&*a, "f", b"x");
    simulation.advance(13_000);
    assert_eq!(fresh(&*b, "f").unwrap(), b"x", "in the memory of the server");
    restart(&simulation);
    assert_eq!(fresh(&*b, "f").unwrap(), b"", "it has lost it");
    file.sync_data().unwrap();
    restart(&simulation);
    assert_eq!(fresh(&*b, "f").unwrap(), b"x");
}

#[test]
fn a_server_that_restarts_has_lost_what_a_dead_host_had_not_committed() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    let file = put(&*a, "f", b"synced");
    write(&*file, b", and not", 6);
    simulation.advance(13_000);
    simulation.crash_host(0);
    assert_eq!(fresh(&*b, "f").unwrap(), b"synced, and not");
    restart(&simulation);
    assert_eq!(fresh(&*b, "f").unwrap(), b"synced");
}

#[test]
fn a_sync_commits_what_its_own_host_wrote_and_nothing_else() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    let file = put(&*a, "f", b"synced");
    write(&*file, b", and not", 6);
    simulation.advance(13_000);
    simulation.crash_host(0);
    b.make_durable(path("f"), 15).unwrap();
    let theirs = b.open(path("f"), OpenMode::Rewrite).unwrap();
    write(&*theirs, b"SYN", 0);
    theirs.sync_data().unwrap();
    assert_eq!(fresh(&*b, "f").unwrap(), b"SYNced, and not");
    restart(&simulation);
    assert_eq!(fresh(&*b, "f").unwrap(), b"SYNced", "another host's sync did not cover it");
}

#[test]
fn writing_another_hosts_bytes_again_and_syncing_makes_them_durable() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    let file = put(&*a, "f", b"synced");
    write(&*file, b", and not", 6);
    simulation.advance(13_000);
    simulation.crash_host(0);
    let found = fresh(&*b, "f").unwrap();
    let again = b.open(path("f"), OpenMode::Rewrite).unwrap();
    write(&*again, &found[6..], 6);
    restart(&simulation);
    assert_eq!(fresh(&*simulation.host(2), "f").unwrap(), b"synced", "not before the sync");
    again.sync_data().unwrap();
    restart(&simulation);
    assert_eq!(fresh(&*b, "f").unwrap(), b"synced, and not");
}

#[test]
fn the_next_boot_of_a_host_does_not_commit_what_the_last_one_wrote() {
    let (simulation, a, _) = two(Profile::nfs(), tame());
    let _file = create(&*a, "f", b"x");
    simulation.advance(13_000);
    simulation.crash_host(0);
    let a = simulation.host(0);
    a.make_durable(path("f"), 1).unwrap();
    restart(&simulation);
    assert_eq!(fresh(&*a, "f").unwrap(), b"");
}

#[test]
fn records_and_synced_bytes_survive_the_loss_of_everything() {
    for seed in 0..50 {
        let (simulation, a, _) = two(Profile::nfs(), seeded(seed));
        let file = put(&*a, "f", &[1; 3000]);
        write(&*file, &[2; 3000], 3000);
        a.create_records(path("r"), 3).unwrap();
        a.open_records(path("r")).unwrap().write(1, &[[7; 512]]).unwrap();
        simulation.lose_power();
        let b = simulation.host(1);
        assert_eq!(fresh(&*b, "f").unwrap()[..3000], [1; 3000]);
        let mut records = [[9; 512]; 3];
        b.open_records(path("r")).unwrap().read(0, &mut records).unwrap();
        assert_eq!(records, [[0; 512], [7; 512], [0; 512]]);
    }
}

#[test]
fn a_record_is_not_lost_to_older_bytes_that_are_sent_again() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    a.create_records(path("r"), 2).unwrap();
    let file = a.open(path("r"), OpenMode::Write).unwrap();
    write(&*file, &[1; 1024], 0);
    simulation.advance(13_000);
    a.open_records(path("r")).unwrap().write(0, &[[7; 512]]).unwrap();
    restart(&simulation);
    file.sync_data().unwrap();
    let mut records = [[9; 512]; 2];
    b.open_records(path("r")).unwrap().read(0, &mut records).unwrap();
    assert_eq!(records, [[7; 512], [1; 512]]);
}

#[test]
fn what_was_committed_is_not_sent_again() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    put(&*a, "f", b"old");
    let theirs = b.open(path("f"), OpenMode::Rewrite).unwrap();
    write(&*theirs, b"new", 0);
    theirs.sync_data().unwrap();
    restart(&simulation);
    assert!(!simulation.write_back(0) && !simulation.write_back(1));
    assert_eq!(fresh(&*b, "f").unwrap(), b"new");
}
