//! Benchmarks of kaas.
