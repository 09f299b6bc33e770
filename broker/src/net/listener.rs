//! Listening sockets: binding, accepting, connection limits, socket options.
//!
//! Binding is a step of its own, so that a taken port is found before the data directory is touched.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use super::connection::{Connection, Ended, Shared};
use super::limits::Slot;
use super::{Budget, ConnectionLimits, FileReads, Peer, Phase, Service, Settings, Shutdown};

/// Unanswered keep-alive probes before a connection is reset.
const KEEPALIVE_PROBES: u32 = 6;
/// Pause after a failed accept (no descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often that goes into the log while it lasts.
const ACCEPT_TOLD_EVERY: Duration = Duration::from_secs(60);
/// How long no accept has failed when it is over.
const ACCEPT_CALM: Duration = Duration::from_secs(10);

/// A listening socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ListenerError {
    /// Another process has the port.
    #[error("cannot listen on {address}: the port is in use by another process")]
    InUse {
        /// What was asked for.
        address: SocketAddr,
    },
    /// Anything else.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// What was asked for.
        address: SocketAddr,
        /// The system's words.
        source: io::Error,
    },
}

/// A bound socket that accepts nothing yet.
#[derive(Debug)]
pub struct Bound {
    socket: StdListener,
    address: SocketAddr,
}

impl Bound {
    /// Where it listens; the port is the real one, also if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Binds and listens; nobody is answered before [`Listener::serve`].
pub fn bind(address: SocketAddr, settings: &Settings) -> Result<Bound, ListenerError> {
    let attempt = || -> io::Result<Bound> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            // "::" serves IPv4 too, as Java's sockets do.
            socket.set_only_v6(false)?;
        }
        if let Some(bytes) = settings.receive_buffer_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        if let Some(bytes) = settings.send_buffer_bytes {
            socket.set_send_buffer_size(bytes)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(i32::try_from(settings.backlog).unwrap_or(i32::MAX))?;
        let socket = StdListener::from(socket);
        let address = socket.local_addr()?;
        Ok(Bound { socket, address })
    };
    attempt().map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ListenerError::InUse { address },
        _ => ListenerError::Bind { address, source },
    })
}

/// Accepts connections for a service.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    name: Arc<str>,
    shared: Shared,
    limits: Arc<ConnectionLimits>,
    failing: Option<Failing>,
}

/// Accepts that fail, one after the other.
#[derive(Debug)]
struct Failing {
    /// When the log was told.
    told: Instant,
    /// The last one.
    last: Instant,
    /// How many since the log was told.
    times: u64,
}

impl Listener {
    /// A listener over a bound socket. Must be called inside a runtime. `budget` and `limits` are shared by all
    /// listeners of a process.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        bound: Bound,
        name: &str,
        service: Arc<dyn Service>,
        reads: Arc<dyn FileReads>,
        settings: Arc<Settings>,
        budget: Budget,
        limits: Arc<ConnectionLimits>,
        shutdown: Shutdown,
    ) -> io::Result<Self> {
        let shared = Shared { service, reads, settings, budget, shutdown };
        Ok(Self {
            socket: TcpListener::from_std(bound.socket)?,
            name: name.into(),
            shared,
            limits,
            failing: None,
        })
    }

    /// Serves until the process drains; returns when every connection has ended.
    pub async fn serve(mut self) {
        let mut connections = JoinSet::new();
        let shutdown = self.shared.shutdown.clone();
        loop {
            tokio::select! {
                biased;
                () = shutdown.reached(Phase::Draining) => break,
                // Ended connections are reaped as they end.
                Some(_) = connections.join_next() => {}
                accepted = self.accept() => {
                    if let Some((stream, peer, guard)) = accepted {
                        let connection = Connection::new(stream, peer, self.shared.clone());
                        connections.spawn(serve_one(connection, guard));
                    }
                }
            }
        }
        drop(self.socket);
        while connections.join_next().await.is_some() {}
    }

    /// One connection, or `None` if it was turned away.
    async fn accept(&mut self) -> Option<(TcpStream, Arc<Peer>, Slot)> {
        // At the limit the system's backlog holds newcomers, as in Kafka.
        self.limits.room().await;
        let (stream, address) = match self.socket.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                self.failed(&error);
                tokio::time::sleep(ACCEPT_PAUSE).await;
                return None;
            }
        };
        if let Some(failing) = self.failing.take_if(|failing| failing.last.elapsed() > ACCEPT_CALM) {
            info!(listener = %self.name, failed = failing.times, "connections are accepted again");
        }
        let Some(slot) = self.limits.take(address.ip()) else {
            info!(ip = %address.ip(), "too many connections from this address (max.connections.per.ip)");
            return None;
        };
        if let Err(error) = self.prepare(&stream) {
            debug!(%address, %error, "connection lost while it was accepted");
            return None;
        }
        let local = stream.local_addr().ok()?;
        let id = self.limits.next_id();
        Some((stream, Arc::new(Peer { id, address, local, listener: Arc::clone(&self.name) }), slot))
    }

    /// Tells the log of a failed accept: of the first one, and then now and then, since it is tried again at once.
    fn failed(&mut self, error: &io::Error) {
        let now = Instant::now();
        let failing = self.failing.get_or_insert(Failing { told: now, last: now, times: 0 });
        failing.last = now;
        failing.times += 1;
        let first = failing.told == now;
        if first || now.duration_since(failing.told) > ACCEPT_TOLD_EVERY {
            warn!(listener = %self.name, %error, times = failing.times, "cannot accept a connection");
            failing.told = now;
            failing.times = 0;
        }
    }

    fn prepare(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let settings = &self.shared.settings;
        let keepalive = TcpKeepalive::new()
            .with_time(settings.keepalive_idle)
            .with_interval(settings.keepalive_interval)
            .with_retries(KEEPALIVE_PROBES);
        SockRef::from(stream).set_tcp_keepalive(&keepalive)
    }
}

async fn serve_one(connection: Connection, slot: Slot) {
    let peer = connection.peer();
    debug!(%peer, "connected");
    match connection.run().await {
        Ended::Orderly => debug!(%peer, "disconnected"),
        ended @ (Ended::Idle | Ended::Write(_)) => info!(%peer, reason = %ended, "closing connection"),
        Ended::Frame(super::FrameError::Socket(error)) => debug!(%peer, %error, "connection lost"),
        ended => warn!(%peer, reason = %ended, "closing connection"),
    }
    drop(slot);
}
