//! The file store: what it keeps, what it refuses, and in which order it does things.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kaas_control::ControlError;
use kaas_control::metadata::{BrokerScope, ConfigMap, MetadataStore, MetadataWatcher, TopicId};

use support::{Say, World, mkdir, names, new_topic, on_every_volume, put};

fn config(pairs: &[(&str, &str)]) -> ConfigMap {
    new_topic("t", 1, pairs).config
}

#[test]
fn topics_are_there_after_a_restart() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        let first = world.store.create_topic(&new_topic("a", 3, &[("retention.ms", "5")])).unwrap();
        let second = world.store.create_topic(&new_topic("b.c", 1, &[])).unwrap();
        assert_ne!(first.id, second.id);
        assert_eq!(names(world.substrate.as_ref(), "topics"), ["a", "b.c"]);
        assert_eq!(
            names(world.substrate.as_ref(), "topics/a"),
            ["0", "1", "2", "config.00000001.1.json", "topic-id.json"]
        );
        assert_eq!(names(world.substrate.as_ref(), "topics/a/2"), ["partition.json"]);

        let again = world.again();
        let topics = again.store.topics();
        assert_eq!((topics.len(), topics.version()), (2, 0));
        assert_eq!(topics.get("a"), Some(&first));
        assert_eq!(topics.get_by_id(second.id), Some(&second));
        assert_eq!(topics.get("a").unwrap().partition_dir(2).to_str(), Some("topics/a/2"));
    });
}

#[test]
fn a_topic_is_durable_and_the_fence_was_asked_before_it_is_there() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        world.store.create_topic(&new_topic("a", 2, &[("retention.ms", "5")])).unwrap();
        assert_eq!(
            world.events.take(),
            ["sync tree topics/~new-UUID", "rename topics/~new-UUID -> topics/a", "sync dir topics", "fence"]
        );
        world.store.grow_topic("a", 4).unwrap();
        let mut events = world.events.take();
        events[..2].sort();
        assert_eq!(
            events,
            [
                "sync tree topics/a/~new-2-UUID",
                "sync tree topics/a/~new-3-UUID",
                "rename topics/a/~new-2-UUID -> topics/a/2",
                "rename topics/a/~new-3-UUID -> topics/a/3",
                "sync dir topics/a",
                "fence"
            ]
        );
        world.store.alter_topic_config("a", &mut |_| Some(config(&[("retention.ms", "6")]))).unwrap();
        let events = world.events.take();
        assert_eq!(
            events[..4],
            [
                "rename topics/a/~tmp-config.00000001.2.json -> topics/a/config.00000001.2.json",
                "sync dir topics/a",
                "fence",
                "remove topics/a/config.00000001.1.json"
            ]
        );
        world.store.delete_topic(world.store.topics().get("a").unwrap().id).unwrap();
        assert_eq!(
            world.events.take(),
            [
                "take away a",
                "fence",
                "rename topics/a -> topics/~deleted-00000001-a-UUID",
                "sync dir topics",
                "fence"
            ]
        );
        world.store.sweep().unwrap();
        let events = world.events.take();
        assert_eq!(events.first().map(String::as_str), Some("fence"));
        assert!(
            events.iter().any(|event| event == "remove dir topics/~deleted-00000001-a-UUID"),
            "{events:?}"
        );
    });
}

#[test]
fn what_kafka_refuses_is_refused() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        let create = |name: &str, partitions| world.store.create_topic(&new_topic(name, partitions, &[]));
        create("a.b", 2).unwrap();
        assert!(matches!(create("", 1), Err(ControlError::Name(_))));
        assert!(matches!(create("a/b", 1), Err(ControlError::Name(_))));
        assert!(matches!(create("~new-x", 1), Err(ControlError::Name(_))));
        assert!(matches!(create("a.b", 1), Err(ControlError::TopicExists { .. })));
        let collision = create("a_b", 1).unwrap_err();
        assert_eq!(collision.to_string(), "topic 'a_b' collides with existing topic 'a.b'");
        assert!(matches!(create("c", 0), Err(ControlError::PartitionLimit { .. })));
        assert!(matches!(create("c", 10_001), Err(ControlError::PartitionLimit { limit: 10_000, .. })));

        let grow = |name: &str, partitions| world.store.grow_topic(name, partitions);
        assert!(matches!(grow("nope", 3), Err(ControlError::UnknownTopic { .. })));
        for count in [1, 2] {
            let error = grow("a.b", count).unwrap_err();
            assert!(matches!(error, ControlError::PartitionCount { current: 2, .. }), "{error}");
        }
        assert!(matches!(grow("a.b", 10_001), Err(ControlError::PartitionLimit { .. })));
        let unknown = world.store.delete_topic(TopicId::random());
        assert!(matches!(unknown, Err(ControlError::UnknownTopicId { .. })));
        let unknown = world.store.alter_topic_config("nope", &mut |_| None);
        assert!(matches!(unknown, Err(ControlError::UnknownTopic { .. })));
        assert_eq!(names(world.substrate.as_ref(), "topics"), ["a.b"]);
    });
}

#[test]
fn growth_survives_a_restart() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        let born = world.store.create_topic(&new_topic("a", 1, &[])).unwrap();
        let grown = world.store.grow_topic("a", 12).unwrap();
        assert_eq!((grown.partitions, grown.id), (12, born.id));
        let again = world.again();
        assert_eq!(again.store.topics().get("a"), Some(&grown));
    });
}

#[test]
fn a_deleted_topic_is_gone_and_its_name_is_another_topics() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        let long = "x".repeat(249);
        for name in ["a", &long] {
            let old = world.store.create_topic(&new_topic(name, 2, &[("retention.ms", "1")])).unwrap();
            world.store.delete_topic(old.id).unwrap();
            assert!(world.store.topics().get(name).is_none());
            let new = world.store.create_topic(&new_topic(name, 1, &[])).unwrap();
            assert_ne!(new.id, old.id);
            assert!(new.config.is_empty());
        }
        assert_eq!(names(world.substrate.as_ref(), "topics").len(), 4);
        // A restart before the removal: the next process goes on with it.
        let again = world.again();
        assert_eq!(again.store.topics().len(), 2);
        assert_eq!(again.store.sweep().unwrap(), 0);
        assert_eq!(names(again.substrate.as_ref(), "topics"), ["a", &long]);
    });
}

#[test]
fn what_crashes_left_is_removed_and_strangers_are_left_alone() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        world.store.create_topic(&new_topic("a", 2, &[])).unwrap();
        let volume = world.substrate.as_ref();
        mkdir(volume, "topics/~new-1");
        mkdir(volume, "topics/~new-1/0");
        put(volume, "topics/~new-1/topic-id.json", "half");
        mkdir(volume, "topics/a/~new-2-1");
        mkdir(volume, "topics/lost+found");
        mkdir(volume, "topics/no-id");
        put(volume, "topics/README", "hello");

        let again = world.again();
        assert_eq!(again.store.topics().len(), 1);
        assert_eq!(again.store.topics().get("a").unwrap().partitions, 2);
        assert_eq!(again.store.sweep().unwrap(), 0);
        assert_eq!(names(volume, "topics"), ["README", "a", "lost+found", "no-id"]);
        assert_eq!(names(volume, "topics/a"), ["0", "1", "topic-id.json"]);
    });
}

#[test]
fn a_newer_format_is_refused_and_not_touched() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        let topic = world.store.create_topic(&new_topic("a", 1, &[])).unwrap();
        let volume = world.substrate.as_ref();
        let id = format!("{{\"format\": 2, \"topic\": \"a\", \"topic_id\": \"{}\"}}", topic.id);
        for (path, newer, older) in [
            ("topics/a/topic-id.json", id.clone(), Some(id.replace("2,", "1,"))),
            ("topics/a/config.00000001.9.json", "{\"format\": 2, \"config\": {}}".to_owned(), None),
            ("cluster/broker-configs.00000001.9.json", "{\"format\": 9}".to_owned(), None),
        ] {
            put(volume, path, &newer);
            let before = (names(volume, "topics"), names(volume, "topics/a"), names(volume, "cluster"));
            let error = World::at_epoch(Arc::clone(&world.substrate), 2).err().unwrap();
            assert!(matches!(error, ControlError::NewerFormat { .. }), "{error}");
            assert!(error.to_string().contains(path), "{error}");
            assert_eq!(
                before,
                (names(volume, "topics"), names(volume, "topics/a"), names(volume, "cluster"))
            );
            match older {
                Some(older) => put(volume, path, &older),
                None => volume.remove_file(path.as_ref()).unwrap(),
            }
        }
        assert_eq!(world.again().store.topics().len(), 1);
    });
}

#[test]
fn a_damaged_topic_does_not_hold_up_the_others_and_keeps_its_name() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        for name in ["cut", "foreign", "gap", "config", "good"] {
            world.store.create_topic(&new_topic(name, 2, &[("retention.ms", "1")])).unwrap();
        }
        let volume = world.substrate.as_ref();
        put(volume, "topics/cut/topic-id.json", "{\"format\": 1, \"topic\":");
        let id = TopicId::random();
        put(
            volume,
            "topics/foreign/topic-id.json",
            &format!("{{\"format\":1,\"topic\":\"x\",\"topic_id\":\"{id}\"}}"),
        );
        volume.rename("topics/gap/0".as_ref(), "topics/gap/old".as_ref()).unwrap();
        put(volume, "topics/config/config.00000001.1.json", "");
        let again = world.again();
        let known: Vec<_> = again.store.topics().iter().map(|topic| topic.name.to_string()).collect();
        assert_eq!(known, ["good"]);
        for name in ["cut", "foreign", "gap", "config"] {
            let error = again.store.create_topic(&new_topic(name, 1, &[])).unwrap_err();
            assert!(matches!(error, ControlError::Damaged { .. }), "{error}");
        }
        assert_eq!(names(volume, "topics").len(), 5);
    });
}

#[test]
fn concurrent_changes_of_one_topics_configs_are_all_kept() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        world.store.create_topic(&new_topic("a", 1, &[])).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let store = &world.store;
                scope.spawn(move || {
                    for round in 0..10 {
                        let change = &mut |current: &ConfigMap| {
                            let mut next = current.clone();
                            next.insert(format!("{thread}.{round}"), "x".to_owned());
                            Some(next)
                        };
                        store.alter_topic_config("a", change).unwrap();
                    }
                });
            }
        });
        assert_eq!(world.store.topics().get("a").unwrap().config.len(), 40);
        assert_eq!(
            names(world.substrate.as_ref(), "topics/a"),
            ["0", "config.00000001.40.json", "topic-id.json"]
        );
        // The next epoch counts anew, and wins.
        let again = world.again();
        assert_eq!(again.store.topics().get("a").unwrap().config.len(), 40);
        again.store.alter_topic_config("a", &mut |_| Some(config(&[("k", "v")]))).unwrap();
        assert_eq!(
            names(again.substrate.as_ref(), "topics/a"),
            ["0", "config.00000002.1.json", "topic-id.json"]
        );
        assert_eq!(*again.again().store.topics().get("a").unwrap().config, config(&[("k", "v")]));
    });
}

#[test]
fn a_change_that_is_refused_or_changes_nothing_writes_nothing() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        let topic = world.store.create_topic(&new_topic("a", 1, &[("k", "v")])).unwrap();
        world.events.take();
        assert_eq!(world.store.alter_topic_config("a", &mut |_| None).unwrap(), topic);
        let same = world.store.alter_topic_config("a", &mut |current| Some(current.clone())).unwrap();
        assert_eq!(same, topic);
        world.store.alter_broker_config(BrokerScope::All, &mut |_| None).unwrap();
        assert!(world.events.take().is_empty());
        assert_eq!(world.store.topics().version(), 1);
    });
}

#[test]
fn broker_configs_survive_a_restart() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        let set = |scope, pairs: &[(&str, &str)]| {
            world.store.alter_broker_config(scope, &mut |_| Some(config(pairs))).unwrap()
        };
        set(BrokerScope::All, &[("a", "1")]);
        set(BrokerScope::Broker(7), &[("b", "2")]);
        let overrides = set(BrokerScope::Broker(8), &[("c", "3")]);
        assert_eq!(overrides.scope(BrokerScope::Broker(7)), config(&[("b", "2")]));
        set(BrokerScope::Broker(8), &[]);
        let again = world.again().store.broker_overrides();
        assert_eq!(again, world.store.broker_overrides());
        assert_eq!((again.all.clone(), again.brokers.len()), (config(&[("a", "1")]), 1));
        assert_eq!(names(world.substrate.as_ref(), "cluster"), ["broker-configs.00000001.4.json"]);
    });
}

#[test]
fn nothing_is_published_when_the_fence_does_not_say_leading() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        let topic = world.store.create_topic(&new_topic("a", 1, &[])).unwrap();
        for say in [Say::Deposed, Say::Unknown] {
            world.say(say);
            assert!(world.store.create_topic(&new_topic("b", 1, &[])).is_err());
            assert!(world.store.grow_topic("a", 5).is_err());
            assert!(world.store.alter_topic_config("a", &mut |_| Some(config(&[("k", "v")]))).is_err());
            assert!(
                world
                    .store
                    .alter_broker_config(BrokerScope::All, &mut |_| Some(config(&[("k", "v")])))
                    .is_err()
            );
            let topics = world.store.topics();
            assert_eq!((topics.len(), topics.get("a")), (1, Some(&topic)));
            assert!(world.store.broker_overrides().all.is_empty());
        }
        // A sweep removes nothing either.
        mkdir(world.substrate.as_ref(), "topics/~deleted-x");
        assert!(world.store.sweep().is_err());
        assert!(names(world.substrate.as_ref(), "topics").contains(&"~deleted-x".to_owned()));

        // Once the fence answers again, what was asked for before is found, or done.
        world.say(Say::Leading);
        let error = world.store.create_topic(&new_topic("b", 1, &[])).unwrap_err();
        assert!(matches!(error, ControlError::TopicExists { .. }), "{error}");
        assert!(world.store.topics().get("b").is_some());
        assert_eq!(world.store.grow_topic("a", 5).unwrap().partitions, 5);
        let changed = world.store.alter_topic_config("a", &mut |_| Some(config(&[("k", "w")]))).unwrap();
        assert_eq!(world.store.sweep().unwrap(), 0);
        let again = world.again();
        assert_eq!(again.store.topics().get("a"), Some(&changed));
        assert_eq!(again.store.topics().get("b"), world.store.topics().get("b"));
    });
}

#[test]
fn a_birth_that_fails_leaves_nothing() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        *world.keeper.fail_birth_of.lock() = Some(2);
        assert!(world.store.create_topic(&new_topic("a", 3, &[])).is_err());
        assert!(names(world.substrate.as_ref(), "topics").is_empty());
        world.store.create_topic(&new_topic("a", 2, &[])).unwrap();
        assert!(world.store.grow_topic("a", 5).is_err());
        assert_eq!(names(world.substrate.as_ref(), "topics/a"), ["0", "1", "topic-id.json"]);
        *world.keeper.fail_birth_of.lock() = None;
        assert_eq!(world.store.grow_topic("a", 5).unwrap().partitions, 5);
    });
}

#[test]
fn a_deletion_that_fails_is_repeated() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        let topic = world.store.create_topic(&new_topic("a", 1, &[])).unwrap();
        *world.keeper.fail_take_away.lock() = true;
        assert!(world.store.delete_topic(topic.id).is_err());
        assert_eq!(names(world.substrate.as_ref(), "topics"), ["a"]);
        assert!(world.store.topics().get("a").is_some());
        let events = world.events.take();
        assert_eq!(events.last().unwrap(), "give back a", "what is not deleted is served: {events:?}");
        *world.keeper.fail_take_away.lock() = false;
        world.say(Say::UnknownNext);
        assert!(world.store.delete_topic(topic.id).is_err());
        world.say(Say::Leading);
        world.events.take();
        world.store.delete_topic(topic.id).unwrap();
        let events = world.events.take();
        assert!(events.ends_with(&["sync dir topics".to_owned(), "fence".to_owned()]), "{events:?}");
        assert!(world.store.topics().is_empty());
    });
}

#[test]
fn of_concurrent_creations_one_wins() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        for round in 0..5 {
            let pair = [format!("t.{round}"), format!("t_{round}")];
            let won = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let (store, won, name) = (&world.store, &won, &pair[thread % 2]);
                    scope.spawn(move || match store.create_topic(&new_topic(name, 1, &[])) {
                        Ok(_) => {
                            won.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(ControlError::TopicExists { .. } | ControlError::TopicCollides { .. }) => {}
                        Err(error) => panic!("{error}"),
                    });
                }
            });
            assert_eq!(won.load(Ordering::SeqCst), 1);
        }
        assert_eq!(world.store.topics().len(), 5);
        assert_eq!(names(world.substrate.as_ref(), "topics").len(), 5);
    });
}

#[derive(Default)]
struct Count(AtomicUsize);

impl MetadataWatcher for Count {
    fn changed(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn watchers_are_told_until_they_leave() {
    on_every_volume(|substrate| {
        let world = World::new(substrate);
        let count: Arc<Count> = Arc::default();
        let subscription = world.store.subscribe(Arc::clone(&count) as Arc<dyn MetadataWatcher>);
        let topic = world.store.create_topic(&new_topic("a", 1, &[])).unwrap();
        world.store.grow_topic("a", 2).unwrap();
        world.store.alter_topic_config("a", &mut |_| Some(config(&[("k", "v")]))).unwrap();
        world.store.alter_broker_config(BrokerScope::All, &mut |_| Some(config(&[("k", "v")]))).unwrap();
        world.store.delete_topic(topic.id).unwrap();
        assert_eq!(count.0.load(Ordering::SeqCst), 5);
        drop(subscription);
        world.store.create_topic(&new_topic("b", 1, &[])).unwrap();
        assert_eq!(count.0.load(Ordering::SeqCst), 5);
    });
}
