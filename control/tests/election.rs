//! The standalone controller: its directory, its lock, its epochs; and producer ids under its fence.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use kaas_control::ControlError;
use kaas_control::election::{ClusterId, Controller, ControllerSettings};
use kaas_control::metadata::Fence;
use kaas_control::producer_ids::{BLOCK_IDS, ProducerIds};
use kaas_substrate::{Local, Substrate};
use parking_lot::Mutex;

use support::{Say, TestFence, mkdir, names, on_every_volume, put};

fn settings() -> ControllerSettings {
    ControllerSettings { node_id: 1, cluster_id: None, ignore_lock: false }
}

fn forced() -> ControllerSettings {
    ControllerSettings { ignore_lock: true, ..settings() }
}

fn start(substrate: &Arc<dyn Substrate>, settings: &ControllerSettings) -> Result<Controller, ControlError> {
    Controller::start(Arc::clone(substrate), settings)
}

#[test]
fn every_start_has_a_new_epoch_and_the_same_cluster() {
    on_every_volume(|substrate| {
        let mut last = None;
        let mut incarnations = HashSet::new();
        for epoch in 1..=3 {
            let controller = start(&substrate, &settings()).unwrap();
            assert_eq!(controller.current().get(), epoch);
            assert!(
                last.replace(controller.cluster_id().clone()).is_none_or(|id| id == *controller.cluster_id())
            );
            assert!(incarnations.insert(controller.claimant().incarnation.clone()));
            controller.check().unwrap();
        }
        assert_eq!(names(substrate.as_ref(), ""), ["cluster"]);
        assert_eq!(
            names(substrate.as_ref(), "cluster"),
            ["controller", "lock", "lock-holder.json", "meta.json"]
        );
        assert_eq!(names(substrate.as_ref(), "cluster/controller"), ["claim.00000003", "fence"]);
    });
}

#[test]
fn a_process_on_another_host_is_told_which_host_has_the_directory() {
    on_every_volume(|substrate| {
        let _first = start(&substrate, &settings()).unwrap();
        let holder = br#"{"pid":77,"host":"elsewhere.example","incarnation":"x"}"#;
        kaas_substrate::write_small(substrate.as_ref(), Path::new("cluster/lock-holder.json"), holder)
            .unwrap();
        let error = start(&substrate, &settings()).unwrap_err();
        assert!(
            error.to_string().contains("(pid 77 on host elsewhere.example; if that host is down"),
            "{error}"
        );
    });
}

#[test]
fn a_second_process_is_told_who_has_the_directory() {
    on_every_volume(|substrate| {
        let first = start(&substrate, &settings()).unwrap();
        let error = start(&substrate, &settings()).unwrap_err();
        assert!(
            matches!(&error, ControlError::Locked { dir, pid: Some(pid), host: None }
                if *dir == *substrate.root() && *pid == std::process::id()),
            "{error}"
        );
        assert!(error.to_string().contains("in use by another kaas process (pid "), "{error}");
        assert_eq!(first.current().get(), 1);
        first.check().unwrap();
        drop(first);
        start(&substrate, &settings()).unwrap();
    });
}

#[test]
fn two_local_handles_on_one_directory_exclude_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Arc::new(Local::open(dir.path()).unwrap()) as Arc<dyn Substrate>;
    let _first = start(&open(), &settings()).unwrap();
    let error = start(&open(), &settings()).unwrap_err();
    assert!(error.to_string().contains(dir.path().to_str().unwrap()), "{error}");
}

#[test]
fn one_that_is_forced_past_the_lock_deposes_the_first_for_good() {
    on_every_volume(|substrate| {
        let first = start(&substrate, &settings()).unwrap();
        let second = start(&substrate, &forced()).unwrap();
        assert_eq!(second.current().get(), 2);
        let deposed = first.check().unwrap_err();
        assert!(matches!(deposed, ControlError::Deposed { .. }), "{deposed}");
        // It does not take the place back, either.
        assert!(matches!(first.advance(), Err(ControlError::Deposed { .. })));
        assert!(matches!(first.advance_above(second.current()), Err(ControlError::Deposed { .. })));
        second.check().unwrap();
        assert_eq!(second.advance().unwrap().get(), 3);
        second.check().unwrap();
        assert_eq!(first.current().get(), 1);
    });
}

#[test]
fn advancing_keeps_the_controller_and_is_shared() {
    on_every_volume(|substrate| {
        let controller = start(&substrate, &settings()).unwrap();
        let before = controller.current();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| controller.advance_above(before).unwrap());
            }
        });
        assert_eq!(controller.current(), before.next());
        assert_eq!(controller.advance_above(before).unwrap(), before.next());
        assert_eq!(controller.advance().unwrap().get(), 3);
        drop(controller);
        assert_eq!(start(&substrate, &settings()).unwrap().current().get(), 4);
    });
}

#[test]
fn a_controller_is_never_found_deposed_by_itself() {
    on_every_volume(|substrate| {
        let controller = start(&substrate, &settings()).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::SeqCst) {
                        controller.check().unwrap();
                    }
                });
            }
            for _ in 0..200 {
                controller.advance().unwrap();
            }
            done.store(true, Ordering::SeqCst);
        });
        assert_eq!(controller.current().get(), 201);
    });
}

#[test]
fn foreign_newer_and_incomplete_directories_are_refused_and_not_touched() {
    on_every_volume(|substrate| {
        let volume = substrate.as_ref();
        let refused = |settings: &ControllerSettings| {
            let before = (names(volume, ""), names(volume, "cluster"), names(volume, "cluster/controller"));
            let error = start(&substrate, settings).unwrap_err();
            let after = (names(volume, ""), names(volume, "cluster"), names(volume, "cluster/controller"));
            assert_eq!(before, after, "{error}");
            error
        };
        let id = ClusterId::parse("mine").unwrap();
        let mine = ControllerSettings { cluster_id: Some(id.clone()), ..settings() };
        assert_eq!(*start(&substrate, &mine).unwrap().cluster_id(), id);

        let other_node = refused(&ControllerSettings { node_id: 2, ..settings() });
        assert!(other_node.to_string().contains("belongs to node 1, not 2"), "{other_node}");
        let other = ControllerSettings { cluster_id: Some(ClusterId::random()), ..settings() };
        assert!(refused(&other).to_string().contains("belongs to cluster mine, not "));

        put(volume, "cluster/meta.json", "{\"format\": 2, \"cluster_id\": \"mine\", \"node_id\": 1}");
        let newer = refused(&settings());
        assert!(matches!(newer, ControlError::NewerFormat { found: 2, supported: 1, .. }), "{newer}");
        put(volume, "cluster/meta.json", "{\"format\": 1, ");
        assert!(matches!(refused(&settings()), ControlError::Damaged { .. }));
        volume.remove_file("cluster/meta.json".as_ref()).unwrap();
        assert!(matches!(refused(&settings()), ControlError::MissingMeta { .. }));
    });
    on_every_volume(|substrate| {
        mkdir(substrate.as_ref(), "topics");
        let error = start(&substrate, &settings()).unwrap_err();
        assert!(matches!(error, ControlError::MissingMeta { .. }), "{error}");
        assert_eq!(names(substrate.as_ref(), ""), ["topics"]);
    });
}

#[test]
fn a_directory_that_is_in_use_for_something_else_is_refused_and_not_touched() {
    on_every_volume(|substrate| {
        put(substrate.as_ref(), "meta.properties", "cluster.id=abc\n");
        for dir in ["orders-0", "orders-1", "orders-2", "lost+found", ".snapshot"] {
            mkdir(substrate.as_ref(), dir);
        }
        let before = names(substrate.as_ref(), "");
        let error = start(&substrate, &settings()).unwrap_err();
        assert!(matches!(error, ControlError::NotEmpty { .. }), "{error}");
        assert!(error.to_string().contains("and 1 more"), "{error}");
        assert_eq!(names(substrate.as_ref(), ""), before);
    });
    on_every_volume(|substrate| {
        mkdir(substrate.as_ref(), "slots");
        let error = start(&substrate, &settings()).unwrap_err();
        assert!(matches!(error, ControlError::MissingMeta { .. }), "{error}");
    });
}

#[test]
fn an_unfinished_birth_is_in_nobodys_way() {
    on_every_volume(|substrate| {
        mkdir(substrate.as_ref(), "~new-cluster-1");
        mkdir(substrate.as_ref(), "lost+found");
        start(&substrate, &settings()).unwrap();
        assert_eq!(names(substrate.as_ref(), ""), ["cluster", "lost+found"]);
    });
}

#[test]
fn of_processes_that_start_on_an_empty_directory_at_once_one_leads() {
    on_every_volume(|substrate| {
        let started = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| started.lock().push(start(&substrate, &forced()).unwrap()));
            }
        });
        let started = started.into_inner();
        let epochs: HashSet<_> = started.iter().map(Controller::current).collect();
        assert_eq!(epochs.len(), 4);
        let ids: HashSet<_> = started.iter().map(|one| one.cluster_id().as_str()).collect();
        assert_eq!(ids.len(), 1);
        let highest = epochs.into_iter().max().unwrap();
        for controller in &started {
            assert_eq!(controller.check().is_ok(), controller.current() == highest);
        }
        assert_eq!(names(substrate.as_ref(), ""), ["cluster"]);
    });
}

#[test]
fn producer_ids_are_given_out_once() {
    on_every_volume(|substrate| {
        let mut seen = HashSet::new();
        for start_number in 0..3 {
            let controller = Arc::new(start(&substrate, &settings()).unwrap());
            let ids =
                ProducerIds::open(Arc::clone(&substrate), Arc::clone(&controller) as Arc<dyn Fence>).unwrap();
            assert_eq!(ids.try_next(), None);
            for _ in 0..BLOCK_IDS + 5 {
                assert!(seen.insert(ids.next().unwrap().0));
            }
            assert!(seen.insert(ids.try_next().unwrap().0));
            // Two blocks a run, whatever was left of them is lost.
            assert_eq!(seen.iter().max(), Some(&(start_number * 2 * BLOCK_IDS + BLOCK_IDS + 5)));
            controller.advance().unwrap();
        }
        assert_eq!(
            names(substrate.as_ref(), "cluster"),
            ["controller", "lock", "lock-holder.json", "meta.json", "producer-ids.00000005.2.json"]
        );
    });
}

#[test]
fn threads_and_controllers_share_producer_ids_without_a_duplicate() {
    on_every_volume(|substrate| {
        let seen = Mutex::new(HashSet::new());
        let controllers: Vec<_> = (0..2).map(|_| Arc::new(start(&substrate, &forced()).unwrap())).collect();
        let both: Vec<_> = controllers
            .iter()
            .map(|one| ProducerIds::open(Arc::clone(&substrate), Arc::clone(one) as Arc<dyn Fence>).unwrap())
            .collect();
        // The first one is deposed: it gets none, though it wrote a block.
        assert!(matches!(both[0].next(), Err(ControlError::Deposed { .. })));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..800 {
                        let id = both[1].next().unwrap();
                        assert!(seen.lock().insert(id));
                    }
                });
            }
        });
        assert_eq!(seen.lock().len(), 3200);
        assert!(both[0].next().is_err());
    });
}

#[test]
fn a_block_is_not_used_before_the_fence_said_leading() {
    on_every_volume(|substrate| {
        mkdir(substrate.as_ref(), "cluster");
        let fence = Arc::new(TestFence {
            epoch: AtomicU32::new(1),
            say: Mutex::new(Say::Unknown),
            events: Arc::default(),
        });
        let ids = ProducerIds::open(Arc::clone(&substrate), Arc::clone(&fence) as Arc<dyn Fence>).unwrap();
        assert!(matches!(ids.next(), Err(ControlError::FenceUnknown { .. })));
        assert_eq!(ids.try_next(), None);
        *fence.say.lock() = Say::Leading;
        assert_eq!(ids.next().unwrap().0, 0);
        fence.epoch.store(2, Ordering::SeqCst);
        let after = ProducerIds::open(Arc::clone(&substrate), fence).unwrap();
        assert_eq!(after.next().unwrap().0, BLOCK_IDS);
        put(
            substrate.as_ref(),
            "cluster/producer-ids.00000009.1.json",
            "{\"format\":1,\"next_block_start\":-5}",
        );
        let fence: Arc<TestFence> = Arc::new(TestFence {
            epoch: AtomicU32::new(10),
            say: Mutex::new(Say::Leading),
            events: Arc::default(),
        });
        let damaged = ProducerIds::open(Arc::clone(&substrate), fence);
        assert!(matches!(damaged, Err(ControlError::Damaged { .. })));
    });
}
