//! The bit fields that say what a client may do with a resource (KIP-430).
//!
//! While there is no authorizer everybody may do everything, which Kafka says with every operation of the
//! resource's type.

/// Codes of Kafka's operations on resources.
const READ: u8 = 3;
const WRITE: u8 = 4;
const CREATE: u8 = 5;
const DELETE: u8 = 6;
const ALTER: u8 = 7;
const DESCRIBE: u8 = 8;
const CLUSTER_ACTION: u8 = 9;
const DESCRIBE_CONFIGS: u8 = 10;
const ALTER_CONFIGS: u8 = 11;
const IDEMPOTENT_WRITE: u8 = 12;

/// Every operation on a topic.
pub const TOPIC: i32 = bits(&[READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS]);
/// Every operation on the cluster.
pub const CLUSTER: i32 =
    bits(&[CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE]);
/// Every operation on a group.
pub const GROUP: i32 = bits(&[READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS]);

const fn bits(mut operations: &[u8]) -> i32 {
    let mut bits = 0;
    while let [operation, rest @ ..] = operations {
        bits |= 1 << *operation;
        operations = rest;
    }
    bits
}
