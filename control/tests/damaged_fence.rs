//! A controller's fence that somebody has cut or written over: it is claimed anew, and never taken back from a successor.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;

use kaas_control::ControlError;
use kaas_control::election::{Controller, ControllerSettings};
use kaas_control::metadata::Fence;
use kaas_engine::leadership;
use kaas_substrate::{OpenMode, Substrate};

use support::{names, on_every_volume};

const FENCE: &str = "cluster/controller/fence";

fn start(substrate: &Arc<dyn Substrate>, ignore_lock: bool) -> Controller {
    let settings = ControllerSettings { node_id: 1, cluster_id: None, ignore_lock };
    Controller::start(Arc::clone(substrate), &settings).unwrap()
}

/// Each way to damage the fence: cut to nothing, to the middle of the last record, written over with something else.
fn on_every_damage(test: impl Fn(Arc<dyn Substrate>, &dyn Fn())) {
    let cut = |substrate: &Arc<dyn Substrate>, length| {
        substrate.open(Path::new(FENCE), OpenMode::Write).unwrap().set_length(length).unwrap();
    };
    let scribble = |substrate: &Arc<dyn Substrate>| {
        let file = substrate.open(Path::new(FENCE), OpenMode::Write).unwrap();
        let length = usize::try_from(file.length().unwrap()).unwrap();
        file.write_all_at(&[IoSlice::new(&vec![b'x'; length])], 0).unwrap();
    };
    on_every_volume(|substrate| test(Arc::clone(&substrate), &|| cut(&substrate, 0)));
    on_every_volume(|substrate| test(Arc::clone(&substrate), &|| cut(&substrate, 512)));
    on_every_volume(|substrate| test(Arc::clone(&substrate), &|| scribble(&substrate)));
}

#[test]
fn a_damaged_fence_is_claimed_anew() {
    on_every_damage(|substrate, damage| {
        let controller = start(&substrate, false);
        let before = controller.current();
        damage();
        controller.check().unwrap();
        let anew = controller.current();
        assert!(anew > before, "{anew}");
        controller.check().unwrap();
        assert_eq!(controller.current(), anew, "once");
        assert_eq!(controller.advance().unwrap(), anew.next());

        damage();
        let above = controller.current();
        assert!(controller.advance_above(above).unwrap() > above, "without a check before");
        let last = format!("claim.{:08x}", controller.current().get());
        assert_eq!(names(substrate.as_ref(), "cluster/controller"), [&last, "fence"]);
        drop(controller);
        assert!(start(&substrate, false).current().get() > above.get());
    });
}

#[test]
fn a_damaged_fence_is_not_taken_back_from_a_successor() {
    on_every_damage(|substrate, damage| {
        let first = start(&substrate, true);
        let second = start(&substrate, true);
        // The claim file of the epoch after the first one's is gone by now.
        second.advance().unwrap();
        damage();
        assert!(matches!(first.check(), Err(ControlError::Deposed { .. })));
        assert!(matches!(first.advance(), Err(ControlError::Deposed { .. })));
        second.check().unwrap();
        assert!(matches!(first.check(), Err(ControlError::Deposed { .. })));
        second.check().unwrap();
    });
}

/// As when the volume has failed the claim, or the look behind it, after the record had been written.
#[test]
fn a_claim_of_its_own_that_was_not_finished_deposes_no_controller() {
    on_every_volume(|substrate| {
        let controller = start(&substrate, false);
        for ask in [Controller::check, |controller: &Controller| controller.advance().map(drop)] {
            let unfinished = controller.current().next();
            let dir = Path::new("cluster/controller");
            leadership::claim(&substrate, dir, unfinished, controller.claimant()).unwrap();
            ask(&controller).unwrap();
            assert!(controller.current() > unfinished);
        }
        let other = start(&substrate, true);
        assert!(matches!(controller.check(), Err(ControlError::Deposed { .. })));
        other.check().unwrap();
    });
}
