//! The group coordinator: Kafka's classic consumer groups and their committed offsets.

pub mod state;
