//! Deletions that come late: what another controller leads by then stays.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kaas_control::metadata::MetadataStore;
use kaas_engine::leadership::{self, ClaimError, Claimant, Leadership, Standing};
use kaas_engine::types::Epoch;
use kaas_substrate::{RECORD_BYTES, RECORD_ZERO_AT};

use support::{Say, World, names, new_topic, on_every_volume};

/// Deletes a topic with one led partition at epoch 1. Where the directory is then.
fn deleted(world: &World) -> PathBuf {
    let topic = world.store.create_topic(&new_topic("a", 1, &[])).unwrap();
    leadership::birth(&*world.substrate, Path::new("topics/a/0"), Epoch::NONE).unwrap();
    lead(world, Path::new("topics/a/0"), 1).unwrap();
    world.store.delete_topic(topic.id).unwrap();
    let aside = names(world.substrate.as_ref(), "topics").remove(0);
    Path::new("topics").join(aside)
}

fn lead(world: &World, partition: &Path, epoch: u32) -> Result<Leadership, ClaimError> {
    let run = Claimant { broker_id: 1, incarnation: format!("run-{epoch}"), assignment_version: 0 };
    leadership::claim(&world.substrate, partition, Epoch::new(epoch).unwrap(), &run)
}

#[test]
fn a_topic_that_another_controller_leads_by_now_is_put_back() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        let aside = deleted(&world);
        // Claimed before the rename, which came late.
        let leader = lead(&world, &aside.join("0"), 2).unwrap();
        // The next controller has never seen the topic.
        let next = World::at_epoch(Arc::clone(&world.substrate), 3).unwrap();
        assert!(next.store.topics().is_empty());
        assert_eq!(next.store.sweep().unwrap(), 0);
        assert_eq!(names(next.substrate.as_ref(), "topics"), ["a"]);
        assert_eq!(next.store.topics().get("a").map(|topic| topic.partitions), Some(1));
        assert!(matches!(leader.standing(), Standing::Leading));
        lead(&next, Path::new("topics/a/0"), 3).unwrap();
    });
}

#[test]
fn a_topic_that_is_deleted_again_before_it_was_put_back_is_gone() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        let second = {
            world.store.create_topic(&new_topic("a", 1, &[])).unwrap();
            World::at_epoch(Arc::clone(&world.substrate), 2).unwrap()
        };
        let topic = second.store.topics().get("a").unwrap().clone();
        leadership::birth(&*world.substrate, Path::new("topics/a/0"), Epoch::NONE).unwrap();
        lead(&second, Path::new("topics/a/0"), 2).unwrap();
        world.store.delete_topic(topic.id).unwrap();
        second.store.delete_topic(topic.id).unwrap();
        assert!(names(world.substrate.as_ref(), "topics")[0].starts_with("~deleted-00000002-a-"));
        assert_eq!(second.store.sweep().unwrap(), 0);
        assert!(names(world.substrate.as_ref(), "topics").is_empty());
    });
}

#[test]
fn a_removal_that_was_begun_goes_on() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        let aside = deleted(&world);
        world.substrate.remove_file(&aside.join("topic-id.json")).unwrap();
        // A claim that was refused in the end has left its record.
        leadership::take_away(&*world.substrate, &aside.join("0"), Epoch::new(1).unwrap()).unwrap();
        let fence = world.substrate.open_records(&aside.join("0/fence")).unwrap();
        let mut record = [7; RECORD_BYTES];
        record[RECORD_ZERO_AT] = 0;
        fence.write(2, &[record]).unwrap();
        assert_eq!(world.store.sweep().unwrap(), 0);
        assert!(names(world.substrate.as_ref(), "topics").is_empty());
    });
}

#[test]
fn nobody_can_lead_what_is_being_removed() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        let aside = deleted(&world);
        world.say(Say::Unknown);
        assert!(world.store.sweep().is_err(), "the fence does not say leading");
        lead(&world, &aside.join("0"), 2).unwrap();
        leadership::take_away(&*world.substrate, &aside.join("0"), Epoch::new(2).unwrap()).unwrap();
        let refused = lead(&world, &aside.join("0"), 3).unwrap_err();
        assert!(matches!(refused, ClaimError::TakenAway { .. }), "{refused}");
    });
}
