//! Tests of the state machine, without threads.

mod membership;
mod offsets;
mod properties;
mod restart;
mod sim;
mod static_members;
