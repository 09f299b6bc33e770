//! Faulty substrates, crash tests and the process harness of kaas.
