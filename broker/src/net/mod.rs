//! The network: listeners, connections, frames.
//!
//! Owns sockets and nothing else. What a frame means is decided by a [`Service`]; this module knows only that
//! requests of one connection are answered in order, and which of them may be started while earlier ones wait
//! ([`Call::Staged`]).
//!
//! Invariants:
//! - a length prefix is checked before anything is allocated for it;
//! - what all connections hold in requests is bounded by [`Settings::queued_request_bytes`], what one holds by
//!   [`Settings::in_flight_requests`] and [`Settings::in_flight_bytes`];
//! - an idle connection holds no buffer;
//! - nothing here waits for a file system on a runtime thread.

mod budget;
mod connection;
mod frame;
mod limits;
mod listener;
mod settings;
mod shutdown;
mod write;

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use kaas_protocol::Segments;

pub use budget::{Budget, Reservation};
pub use frame::FrameError;
pub use limits::ConnectionLimits;
pub use listener::{Bound, Listener, ListenerError, bind};
pub use settings::Settings;
pub use shutdown::{Phase, Shutdown};
pub use write::{FileHandle, FileReads};

/// A boxed future that the connection's task polls.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What requests mean. Called from connection tasks; must not block.
pub trait Service: Send + Sync + fmt::Debug + 'static {
    /// Whether a frame may be started while earlier staged requests of its connection wait for their answers.
    /// Decided by the first bytes of the frame; must not depend on anything else.
    fn may_stage(&self, frame: &Bytes) -> bool;

    /// A staged request has been read that cannot be started yet, because an earlier one is still being staged.
    /// What it will need may be got ready meanwhile; nothing of it may take effect.
    fn foresee(&self, frame: &Bytes);

    /// Starts a request. `frame` is what follows the length prefix.
    fn call(&self, peer: &Arc<Peer>, frame: Bytes) -> Call;
}

/// A started request.
pub enum Call {
    /// A request in two steps. The first is driven to its end before any later request of the connection is
    /// started, so that requests take effect in order; the second waits for the outcome, and later staged
    /// requests are started meanwhile.
    Staged(BoxFuture<BoxFuture<Reply>>),
    /// A request that starts after all earlier ones are answered, and ends before a later one starts.
    Alone {
        /// The answer.
        reply: BoxFuture<Reply>,
        /// Whether nothing but the answer is lost if it is dropped when the peer is gone.
        droppable: bool,
    },
    /// The answer is known at once.
    Done(Reply),
}

/// How a request ends.
#[derive(Debug)]
pub enum Reply {
    /// Send this whole frame, length included. Ranges in it are made by [`FileHandle::range`].
    Send(Segments),
    /// Send nothing (acks=0).
    Silent,
    /// Close the connection; the reason is logged once.
    Close(String),
}

/// The other end of a connection, and where it came in.
#[derive(Debug)]
pub struct Peer {
    /// Number of the connection since start, for logs.
    pub id: u64,
    /// Address of the client.
    pub address: SocketAddr,
    /// Our own address on this connection.
    pub local: SocketAddr,
    /// Name of the listener that accepted it.
    pub listener: Arc<str>,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.address, self.id)
    }
}
