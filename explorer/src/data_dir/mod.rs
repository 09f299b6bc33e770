//! A whole data directory: `cluster/` and topics' own files around partitions and slots, the controllers that write them, damage of
//! them and of slots, and `verify --repair` over all of it.

mod controller;
mod damage;
mod history;
mod home;
mod mend;
mod slots;

pub use controller::{assign, look};
pub use damage::{When, damage};
pub use home::{DataDir, TOPIC_ID, topic_dir};
pub use mend::{Keep, begin, mend, mend_dying_at};
