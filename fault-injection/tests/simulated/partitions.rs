//! Hosts that are cut off: what returns and what does not, and what lands late.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

use kaas_fault_injection::simulated::Park;

#[test]
fn a_write_of_a_host_that_was_cut_off_lands_after_a_takeover() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    let file = put(&*a, "f", b"first");
    write(&*file, b"late!", 0);
    simulation.cut_off(0);
    // Its process dies, another host takes over, changes the file and moves it.
    drop((file, a));
    let taken = b.open(path("f"), OpenMode::Write).unwrap();
    write(&*taken, b"taken", 0);
    taken.sync_data().unwrap();
    b.rename(path("f"), path("g")).unwrap();
    simulation.advance(60_000);
    assert_eq!(fresh(&*b, "g").unwrap(), b"taken");
    simulation.heal(0);
    assert_eq!(fresh(&*b, "g").unwrap(), b"taken", "not yet");
    assert!(simulation.write_back(0));
    assert_eq!(fresh(&*b, "g").unwrap(), b"late!");
}

#[test]
fn a_host_that_is_cut_off_reads_and_writes_in_its_cache() {
    let (simulation, a, _) = two(Profile::nfs(), tame());
    let file = put(&*a, "f", b"first");
    let held = a.open(path("f"), OpenMode::Read).unwrap();
    assert_eq!(read(&*held), b"first");
    simulation.cut_off(0);
    assert_eq!(held.read_at(&mut [0; 5], 0).unwrap(), 5);
    write(&*file, b"FIRST", 0);
    assert_eq!(read(&*held), b"FIRST");
    simulation.advance(3_000);
    assert!(held.read_at(&mut [0; 5], 0).is_err(), "it wants to know whether the file has changed");
}

#[test]
fn calls_that_need_the_server_do_not_return_on_a_host_that_is_cut_off() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    let file = put(&*a, "f", b"x");
    a.create_records(path("r"), 1).unwrap();
    let records = a.open_records(path("r")).unwrap();
    write(&*file, b"y", 0);
    simulation.cut_off(0);
    assert!(simulation.would_block(0) && !simulation.would_block(1));
    let outcomes = [
        file.sync_data(),
        file.set_length(0),
        a.list(path("")).map(|_| ()),
        a.open(path("f"), OpenMode::Read).map(|_| ()),
        a.open(path("new"), OpenMode::CreateNew).map(|_| ()),
        a.create_dir(path("d")),
        a.rename(path("f"), path("g")),
        a.remove_file(path("f")),
        a.make_durable(path("f"), 1),
        records.read(0, &mut [[0; 512]]),
        records.write(0, &[[1; 512]]),
    ];
    for (call, outcome) in outcomes.into_iter().enumerate() {
        assert_eq!(outcome.unwrap_err().class, ErrorClass::Retriable, "call {call}");
    }
    // None of them has had an effect.
    assert_eq!(
        (names(&*b, ""), fresh(&*b, "f").unwrap()),
        (vec!["f".to_owned(), "r".to_owned()], b"x".to_vec())
    );
    simulation.heal(0);
    file.sync_data().unwrap();
    assert_eq!(fresh(&*b, "f").unwrap(), b"y");
}

/// Heals the host when a call is stuck for the third time.
#[derive(Debug)]
struct HealsLater {
    simulation: Simulation,
    calls: AtomicUsize,
}

impl Park for HealsLater {
    fn park(&self, host: usize) -> bool {
        if self.calls.fetch_add(1, Ordering::SeqCst) == 2 {
            self.simulation.heal(host);
            self.simulation.start_server();
        }
        true
    }
}

#[test]
fn a_call_that_is_stuck_is_parked_and_goes_on_later() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    let park = HealsLater { simulation: simulation.clone(), calls: AtomicUsize::new(0) };
    let park = Arc::new(park);
    simulation.park_with(Arc::clone(&park) as Arc<dyn Park>);
    simulation.cut_off(0);
    drop(put(&*a, "f", b"x"));
    assert_eq!(fresh(&*b, "f").unwrap(), b"x");
    assert_eq!(park.calls.load(Ordering::SeqCst), 3);
    park.calls.store(0, Ordering::SeqCst);
    simulation.crash_server();
    assert!(simulation.would_block(0) && simulation.would_block(1));
    assert_eq!(fresh(&*b, "f").unwrap(), b"x");
    assert_eq!(park.calls.load(Ordering::SeqCst), 3);
}

#[test]
fn nothing_of_a_host_lands_that_loses_power_while_it_is_cut_off() {
    let (simulation, a, b) = two(Profile::nfs(), wild());
    let file = put(&*a, "f", b"x");
    write(&*file, b"y", 0);
    simulation.cut_off(0);
    simulation.crash_host(0);
    simulation.heal(0);
    assert!(!simulation.write_back(0));
    assert_eq!(fresh(&*b, "f").unwrap(), b"x");
}

#[test]
fn a_lock_goes_to_another_host_when_its_holder_is_cut_off_for_longer_than_the_lease() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    let _held = a.try_lock(path("lock")).unwrap().unwrap();
    simulation.cut_off(0);
    simulation.advance(9_999);
    assert!(b.try_lock(path("lock")).unwrap().is_none());
    simulation.advance(1);
    assert!(b.try_lock(path("lock")).unwrap().is_some());
}

#[test]
fn a_lock_goes_with_its_host() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    let held = a.try_lock(path("lock")).unwrap().unwrap();
    simulation.crash_host(0);
    let theirs = b.try_lock(path("lock")).unwrap();
    assert!(theirs.is_some());
    // The guard of the dead process is nobody's.
    drop(held);
    assert!(simulation.host(0).try_lock(path("lock")).unwrap().is_none());
}

#[test]
fn a_removed_file_that_was_closed_while_cut_off_goes_when_its_host_is_back() {
    let (simulation, a, b) = two(Profile::nfs(), tame());
    a.create_dir(path("d")).unwrap();
    let file = put(&*a, "d/f", b"x");
    a.remove_file(path("d/f")).unwrap();
    simulation.cut_off(0);
    drop(file);
    assert_eq!(b.remove_dir(path("d")).unwrap_err().class, ErrorClass::Invalid);
    simulation.heal(0);
    b.remove_dir(path("d")).unwrap();
}

#[test]
fn a_host_may_be_cut_off_before_it_starts() {
    let simulation = Simulation::new(Profile::nfs(), tame());
    simulation.cut_off(0);
    assert_eq!(simulation.host(0).list(path("")).unwrap_err().class, ErrorClass::Retriable);
}

#[test]
fn a_sync_that_waits_for_the_server_is_one_sync() {
    use kaas_fault_injection::faulty::{Point, Rule, Rules, Verdict};
    let (simulation, a, _) = two(Profile::nfs(), tame());
    let park = Arc::new(HealsLater { simulation: simulation.clone(), calls: AtomicUsize::new(0) });
    simulation.park_with(Arc::clone(&park) as Arc<dyn Park>);
    let file = create(&*a, "f", b"x");
    let rules = Rules::new([Rule::nth(Point::SyncData, 2, Verdict::Fail(ErrorClass::Io))]);
    simulation.fail_syncs(Arc::clone(&rules) as _);
    simulation.cut_off(0);
    file.sync_data().unwrap();
    assert_eq!((park.calls.load(Ordering::SeqCst), rules.hits(), rules.changes()), (3, 0, 1));
}
