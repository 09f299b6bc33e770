//! The control plane of kaas: who leads what, and which topics exist.
