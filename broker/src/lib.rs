//! The Kafka server of kaas.
