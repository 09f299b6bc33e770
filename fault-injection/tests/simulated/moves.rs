//! Files that are moved to another directory: never nowhere, whatever happens in the middle.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use kaas_fault_injection::faulty::{Hook, Point, Verdict};
use kaas_fault_injection::simulated::seeded;

/// The process dies when it has gone so many steps.
#[derive(Debug)]
struct DiesAfter(AtomicU32);

impl Hook for DiesAfter {
    fn before(&self, _: Point, _: &Path) -> Verdict {
        Verdict::Pass
    }

    fn between_steps(&self, _: &Path) -> bool {
        self.0.fetch_sub(1, Ordering::Relaxed) > 1
    }
}

fn profiles() -> [Profile; 3] {
    [Profile::local(), Profile::nfs(), Profile::cephfs()]
}

fn with_a_file(profile: Profile, seed: u64) -> Simulation {
    let simulation = Simulation::new(profile, seeded(seed));
    let volume = simulation.host(0);
    volume.create_dir(path("d")).unwrap();
    put(&*volume, "f", b"whole");
    volume.sync_tree(path("d")).unwrap();
    simulation
}

/// Where it is: the names that a host finds, with what stands under them.
fn places(volume: &dyn Substrate) -> Vec<&'static str> {
    let there = |name: &&str| match fresh(volume, name) {
        Ok(bytes) => bytes == b"whole",
        Err(error) => {
            assert_eq!(error, ErrorClass::NotFound);
            false
        }
    };
    ["f", "d/f"].into_iter().filter(there).collect()
}

#[test]
fn a_move_that_is_done_survives_every_crash() {
    for profile in profiles() {
        for seed in 0..20 {
            let simulation = with_a_file(profile.clone(), seed);
            simulation.host(0).move_file(path("f"), path("d/f")).unwrap();
            simulation.lose_power();
            assert_eq!(places(&*simulation.host(0)), ["d/f"], "{profile:?}");
        }
    }
}

#[test]
fn a_process_that_dies_in_the_middle_of_a_move_leaves_both_names_or_the_new_one() {
    for profile in profiles() {
        let left = (1..=4).map(|steps| {
            let simulation = with_a_file(profile.clone(), 1);
            let dies = Arc::new(DiesAfter(AtomicU32::new(steps)));
            let moved = simulation.host_with(0, dies).move_file(path("f"), path("d/f"));
            assert_eq!(moved.is_ok(), steps == 4);
            places(&*simulation.host(0))
        });
        assert_eq!(left.collect::<Vec<_>>(), [vec!["f", "d/f"], vec!["f", "d/f"], vec!["d/f"], vec!["d/f"]]);
    }
}

#[test]
fn power_that_is_lost_in_the_middle_of_a_move_leaves_either_name_or_both() {
    for profile in profiles() {
        let at_once = profile.metadata_durable_at_once;
        let left = (1..=3).map(|steps| {
            let after_seed = |seed| {
                let simulation = with_a_file(profile.clone(), seed);
                let dies = Arc::new(DiesAfter(AtomicU32::new(steps)));
                simulation.host_with(0, dies).move_file(path("f"), path("d/f")).unwrap_err();
                simulation.lose_power();
                places(&*simulation.host(0))
            };
            (0..40).map(after_seed).collect::<BTreeSet<_>>()
        });
        let (both, new) = (vec!["f", "d/f"], vec!["d/f"]);
        // The new name is not synced; then it is; then the former one is gone, which is not synced.
        let expected = if at_once {
            [BTreeSet::from([both.clone()]), BTreeSet::from([both]), BTreeSet::from([new])]
        } else {
            [
                BTreeSet::from([vec!["f"], both.clone()]),
                BTreeSet::from([both.clone()]),
                BTreeSet::from([both, new]),
            ]
        };
        assert_eq!(left.collect::<Vec<_>>(), expected, "{profile:?}");
    }
}

/// A host that was cut off sends what it had written when it is back: into the file, wherever that is now.
#[test]
fn what_lands_late_lands_in_the_file_that_was_moved() {
    for profile in [Profile::nfs(), Profile::cephfs()] {
        let (simulation, a, b) = two(profile, seeded(3));
        b.create_dir(path("d")).unwrap();
        let file = put(&*a, "f", b"whole");
        a.sync_dir(path("")).unwrap();
        write(&*file, b"w", 0);
        simulation.cut_off(0);
        b.move_file(path("f"), path("d/f")).unwrap();
        simulation.heal(0);
        write(&*file, b"W", 0);
        file.sync_data().unwrap();
        assert_eq!(fresh(&*b, "d/f").unwrap(), b"Whole");
        assert_eq!(names(&*b, ""), ["d"]);
    }
}

#[test]
fn a_move_replaces_nothing_and_moves_no_directory() {
    for profile in profiles() {
        let simulation = with_a_file(profile, 1);
        let volume = simulation.host(0);
        put(&*volume, "d/f", b"taken");
        let refused = volume.move_file(path("f"), path("d/f")).unwrap_err();
        assert!(refused.is_exists());
        assert_eq!(
            (fresh(&*volume, "f").unwrap(), fresh(&*volume, "d/f").unwrap()),
            (b"whole".to_vec(), b"taken".to_vec())
        );
        volume.create_dir(path("e")).unwrap();
        assert!(volume.move_file(path("e"), path("d/e")).is_err());
        assert_eq!(names(&*volume, ""), ["d", "e", "f"]);
    }
}
