//! Damage of the volume, and `verify --repair` of it, beside leaders that know of neither.

mod change;
mod damage;
mod harm;
mod mend;
mod met;

pub use change::{Change, Damaged, below, lay_a_stranger, read};
pub use damage::damage;
pub use harm::Harm;
pub use mend::{begin, epoch_of, heard, incarnation, mend, mend_dying_at};
pub use met::Met;
