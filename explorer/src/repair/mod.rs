//! Damage of the volume, and `verify --repair` of it, beside leaders that know of neither.

mod damage;
mod harm;
mod mend;

pub use damage::damage;
pub use harm::Harm;
pub use mend::{begin, mend, mend_dying_at};
