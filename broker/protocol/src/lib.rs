//! The Kafka wire codec of kaas, generated from schema tables, without I/O.
