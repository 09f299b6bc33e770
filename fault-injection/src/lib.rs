//! Faulty substrates for the tests of kaas: a volume that fails when it is told to.

pub mod faulty;
